"""Charts and sheets of the labs whose files would be too long with them."""
