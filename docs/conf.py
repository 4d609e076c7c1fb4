"""The documentation site: `sphinx-build -W -n -b html docs docs/_build`."""

import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # the pages that are generated import the project

import generated  # noqa: E402

project = "dp-federated-simulator"
copyright = "its authors, Apache-2.0"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = project
html_show_sphinx = False
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
html_math_renderer = "mathml"
smartquotes = False  # it would turn the dashes of flags into one

OUTSIDE = {
    "benchmarks/README.md": "explanation/benchmarks.md",
    "CONTRIBUTING.md": "explanation/contributing.md",
    "CHANGELOG.md": "reference/changelog.md",
}
"""Files outside this folder -> the page of the site that includes each."""


def prepare(app, docname, source):
    """Fill in the generated tables, and link to the pages that include files outside this
    folder."""
    up = "../" * docname.count("/")
    for file, page in OUTSIDE.items():
        source[0] = source[0].replace(f"]({up}../{file}", f"]({up}{page}")
    for mark, make in generated.GENERATED.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, make())


def write_math(self, node):
    """A formula as MathML, which browsers show without a script from elsewhere."""
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", prepare)
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    return {"parallel_read_safe": True}
