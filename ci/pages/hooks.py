"""What MkDocs calls while it makes the pages of ci/site."""
import re

from pygments.lexers.shell import BashSessionLexer

# Prompts of the texts are "$ ". Pygments also knows "# " and "(name) ", with which lines of output begin.
BashSessionLexer._ps1rgx = re.compile(r"^(\$ )(.*\n?)")
BashSessionLexer._venv = re.compile("(?!)")  # matches nothing


def on_nav(nav, config, files):
    """"Next" leads from chapter to chapter, and not to what a chapter has beside its text."""
    for page in nav.pages:
        page.previous_page = page.next_page = None
    chapters = [page for page in nav.pages if re.fullmatch(r"(\d\d-[^/]+/)?README.md", page.file.src_uri)]
    for page, following in zip(chapters, chapters[1:]):
        page.next_page, following.previous_page = following, page


def on_page_markdown(markdown, **_):
    """Commands that need a cluster are in blocks of text, because no test executes them. They are shown and copied as the others are."""
    return markdown.replace("```text\n$ ", "```console\n$ ")
