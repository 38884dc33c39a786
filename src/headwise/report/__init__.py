"""What `verify` found: the record, its JSON form, and its form for people."""

from headwise.report.page import report_document, short_path
from headwise.report.record import (
    EXIT_CODES,
    Check,
    FailOn,
    Finding,
    Kind,
    Reason,
    Report,
    Verdict,
    normal_code,
)

__all__ = [
    "EXIT_CODES",
    "Check",
    "FailOn",
    "Finding",
    "Kind",
    "Reason",
    "Report",
    "Verdict",
    "normal_code",
    "report_document",
    "short_path",
]
