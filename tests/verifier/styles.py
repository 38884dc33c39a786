"""One fault each, in many styles: code, spec, padding mask, and the layer with its line marked."""

from tests.verifier.layers import pads

from headwise.spec import Alibi, Rope

STYLES = {
    "scale": (
        "S02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = q @ k.mT
                s = s / math.sqrt(12)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "scale-on-queries": (
        "S02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q = q * 12 ** -0.5  # HERE
                s = torch.einsum("bhqd,bhkd->bhqk", q, k)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "scale-twice": (
        "S03",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q = q / 2
                s = q @ k.mT
                s.div_(2)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "scale-missing": (
        "S01",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = q @ k.mT  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "scale-in-kernel": (
        "S02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                y = F.scaled_dot_product_attention(q, k, v, scale=12 ** -0.5)  # HERE
                return self.merge(y)
        """,
    ),
    "softmax-axis-by-hand": (
        "X01",
        {},
        None,
        """
        def normalise(s):
            e = (s - s.amax(-2, keepdim=True)).exp()
            return e / e.sum(-2, keepdim=True)  # HERE

        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                return self.merge(normalise(q @ k.mT / 2) @ v)
        """,
    ),
    "mask-in-helper": (
        "M07",
        {"is_causal": True},
        None,
        """
        def hidden(n):
            return torch.ones(n, n).triu(0).bool()  # HERE

        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = (q @ k.mT / 2).masked_fill(hidden(x.shape[1]), -torch.inf)
                s = torch.cat([torch.zeros_like(s[:, :, :1]), s[:, :, 1:]], 2)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-next-token-additive": (
        "M06",
        {"is_causal": True},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                n = x.shape[1]
                bias = torch.full((n, n), -1e9, dtype=x.dtype).triu(2)  # HERE
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
                return self.merge(y)
        """,
    ),
    "mask-query-axis": (
        "M02",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                mask = keep[:, None, :, None]  # HERE
                s = (q @ k.mT / 2).masked_fill(~mask, -1e9)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-result-unread": (
        "M04",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                torch.where(keep[:, None, None], s, -torch.inf)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-rebound": (
        "M04",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                mask = keep[:, None, None]
                mask = None  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        """,
    ),
    "mask-branch-skipped": (
        "M04",
        {},
        pads(),
        """
        class Layer(Base):
            use_mask = False

            def forward(self, x, keep):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                if self.use_mask:  # HERE
                    s = s.masked_fill(~keep[:, None, None], -torch.inf)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-forgotten": (
        "M05",
        {"is_causal": True},
        None,
        """
        class Layer(Base):
            def forward(self, x, keep=None):
                q, k, v = self.heads(x)
                s = q @ k.mT / 2
                if keep is not None:
                    s = s.masked_fill(~keep[:, None, None], -torch.inf)
                w = s.softmax(-1)  # HERE
                return self.merge(w @ v)
        """,
    ),
    "mask-after-softmax": (
        "M12",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                w = (q @ k.mT / 2).softmax(-1)
                w = w.masked_fill(~keep[:, None, None], 0.0)  # HERE
                return self.merge(w @ v)
        """,
    ),
    "swapped-by-chunk": (
        "P02",
        {},
        None,
        """
        class Layer(Base):
            def project(self, x):
                return torch.cat([self.q(x), self.k(x), self.v(x)], -1).chunk(3, -1)

            def forward(self, x):
                q, v, k = map(self.split, self.project(x))  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "values-rotated-by-good-helper": (
        "R04",
        {"positions": Rope(pairs="halves")},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q = rotate(q)
                k = rotate(k)
                v = rotate(v)  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "keys-not-rotated": (
        "R05",
        {"positions": Rope(pairs="halves")},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q = rotate(q)  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "alibi-sign": (
        "R13",
        {"positions": Alibi(slopes=(0.5, 0.25, 0.125))},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                i = torch.arange(x.shape[1])
                slopes = torch.tensor([0.5, 0.25, 0.125]).view(3, 1, 1)
                bias = (i[:, None] - i) * slopes  # HERE
                return self.merge((q @ k.mT / 2 + bias).softmax(-1) @ v)
        """,
    ),
    "merge-view": (
        "G01",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                y = F.scaled_dot_product_attention(q, k, v)
                y = y.contiguous().view(x.shape)  # HERE
                return self.o(y)
        """,
    ),
    "split-view": (
        "H01",
        {},
        None,
        """
        class Layer(Base):
            def heads(self, x):
                shape = (x.shape[0], 3, x.shape[1], 4)
                return [f(x).view(shape) for f in (self.q, self.k, self.v)]  # HERE

            def forward(self, x):
                q, k, v = self.heads(x)
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "weights-transposed": (
        "A01",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                w = (q @ k.mT / 2).softmax(-1)
                return self.merge(w.mT @ v)  # HERE
        """,
    ),
    "heads-in-a-loop": (
        "X01",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                out = []
                for h in range(3):
                    s = q[:, h] @ k[:, h].mT / 2
                    w = s.softmax(1)  # HERE
                    out.append(w @ v[:, h])
                return self.o(torch.cat(out, -1))
        """,
    ),
    "residual": (
        "O03",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                y = self.merge(F.scaled_dot_product_attention(q, k, v))
                return x + y  # HERE
        """,
    ),
    "float32-target": (
        "S02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = (t.double() for t in self.heads(x))
                s = q @ k.mT
                s = s / math.sqrt(12)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "polarity-additive": (
        "M01",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = self.heads(x)
                m = torch.zeros(keep.shape, dtype=x.dtype).masked_fill(keep, -1e9)  # HERE
                s = q @ k.mT / 2 + m[:, None, None]
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "mask-of-other-samples": (
        "M18",
        {},
        pads(),
        """
        class Layer(Base):
            def forward(self, x, keep):
                q, k, v = (t.flatten(0, 1) for t in self.heads(x))
                m = keep[:, None].repeat(3, 1, 1)  # HERE
                w = (q @ k.mT / 2).masked_fill(~m, -1e9).softmax(-1)
                return self.merge((w @ v).unflatten(0, (2, 3)))
        """,
    ),
    "window-too-wide": (
        "M21",
        {"is_causal": True, "window": (1, 0)},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                i = torch.arange(x.shape[1])
                far = i[:, None] - i
                ok = (far >= 0) & (far <= 2)  # HERE
                s = (q @ k.mT / 2).masked_fill(~ok, -torch.inf)
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "softcap-after-mask": (
        "S09",
        {"softcap": 5.0, "is_causal": True},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                s = (q @ k.mT / 2).masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9)
                s = 5 * torch.tanh(s / 5)  # HERE
                return self.merge(s.softmax(-1) @ v)
        """,
    ),
    "rotary-base": (
        "R03",
        {"positions": Rope(pairs="halves")},
        None,
        """
        def turn(t):
            frequency = 500000.0 ** (-torch.arange(0, 4, 2).double() / 4)  # HERE
            angle = torch.arange(t.shape[-2])[:, None] * frequency
            a, b = t.chunk(2, -1)
            c, s = angle.cos(), angle.sin()
            return torch.cat([a * c - b * s, b * c + a * s], -1)

        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                q, k = turn(q), turn(k)
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
    "values-are-keys": (
        "A02",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = self.heads(x)
                w = (q @ k.mT / 2).softmax(-1)
                y = w @ k  # HERE
                return self.merge(y)
        """,
    ),
    "weights-stored-the-other-way": (
        "P04",
        {},
        None,
        """
        class Layer(Base):
            def forward(self, x):
                q, k, v = (self.split(x @ f.weight) for f in (self.q, self.k, self.v))  # HERE
                return self.merge(F.scaled_dot_product_attention(q, k, v))
        """,
    ),
}
