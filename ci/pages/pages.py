"""The pages of ci/site: the Markdown files of the repository, and a page for each other file or folder that they link to.

usage: pages.py FOLDER    writes FOLDER/docs and FOLDER/mkdocs.yml; run it in the repository
"""
import json
import os
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
ITEM = re.compile(r"(> )?( *)([-*]|\d+\.) ")
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".cu": "cuda", ".py": "python", ".json": "json", ".yml": "yaml", ".yaml": "yaml",
             ".diff": "diff", ".cmake": "cmake", ".txt": "cmake"}
files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], text=True, check=True,
                       stdout=subprocess.PIPE).stdout.split("\n")
linked = {}  # file or folder without a README: the Markdown file that links to it first, and the line


def page_of(path):
    """Where the page of a file or folder lies in docs/. MkDocs leaves out what begins with a dot."""
    path = path.replace(".github", "github")
    if os.path.isdir(path):
        return path + ("/README.md" if path + "/README.md" in files else "/index.md")
    return path if path.endswith((".md", ".svg", ".png")) else path + ".md"


def convert(lines, source, page):
    """Lines of the Markdown file `source`, as lines of `page` for Python-Markdown, which is stricter than GitHub's."""
    def link(found):
        target = os.path.normpath(os.path.join(os.path.dirname(source), found[1])) if found[1] else source
        if not page_of(target).endswith((".svg", ".png")) and not (target.endswith(".md") or target + "/README.md" in files):
            linked.setdefault(target, (source, found.string.strip()))
        return f"]({os.path.relpath(page_of(target), os.path.dirname(page))}{found[2] or ''})"

    fence = in_list = False
    for line in lines:
        fence ^= line.lstrip("> ").startswith("```")
        if not fence:
            item = ITEM.match(line)
            if item and not in_list:
                yield item[1] or ""  # an empty line comes before a list
            in_list = bool(item) or in_list and bool(line.strip("> "))
            line = LINK.sub(link, line).replace("<details>", '<details markdown="1">')
            if item and 2 <= len(item[2]) < 4:
                line = "  " + line  # a list in a list
        yield line


def code(path):
    text = pathlib.Path(path).read_text()
    fence = "`" * max(4, *(len(ticks) + 1 for ticks in re.findall("`+", text) or [""]))
    language = LANGUAGES.get(pathlib.Path(path).suffix, "bash")
    return f'{fence}{language} title="{path}"\n{text.rstrip()}\n{fence}\n'


def source_page(path):
    """A file's page: the section of the text that links to it first, and beside it the file. A folder's: its files."""
    if os.path.isdir(path):
        inside = [file for file in files if os.path.dirname(file) == path]
        return "\n".join([f"# {path}\n", *(f"## {os.path.basename(file)}\n\n{code(file)}" for file in inside)])
    text, line = linked[path]
    lines = pathlib.Path(text).read_text().split("\n")
    at = next(i for i, one in enumerate(lines) if one.strip() == line)
    first = max(i for i in range(at + 1) if i == 0 or lines[i].startswith("## "))
    last = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("## ")), len(lines))
    section = "\n".join(convert(lines[first:last], text, page_of(path)))
    return (f'---\nhide: [navigation, toc]\n---\n# {os.path.basename(path)}\n\n<div class="beside" markdown="1">\n'
            f'<div markdown="1" data-search-exclude>\n{section}\n</div>\n<div markdown="1">\n\n{code(path)}\n</div>\n</div>\n')


def make(folder):
    pages = [file for file in files if file.endswith(".md") and not file.startswith(".")]
    texts = {page: "\n".join(convert(pathlib.Path(page).read_text().split("\n"), page, page)) for page in pages}
    for program in files:  # a lesson program that its chapter's README names without a link
        readme = os.path.dirname(program) + "/README.md"
        if re.fullmatch(r"\d\d-[^/]+/[^/]+[.](cpp|cu)", program) and program not in linked:
            named = [line.strip() for line in pathlib.Path(readme).read_text().split("\n") if os.path.basename(program) in line]
            linked.update({program: (readme, named[0])} if named else {})
    done = set()
    while more := [path for path in linked if path not in done]:  # the text beside a file has links, too
        for path in more:
            done.add(path)
            texts[page_of(path)] = source_page(path)
    for page, text in texts.items():
        (folder / "docs" / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / "docs" / page).write_text(text)
    for picture in files:
        if picture.endswith(".svg"):
            (folder / "docs" / picture).parent.mkdir(parents=True, exist_ok=True)
            (folder / "docs" / picture).write_bytes(pathlib.Path(picture).read_bytes())
    (folder / "docs/pages.css").write_bytes(pathlib.Path("ci/pages/pages.css").read_bytes())

    def title(page):
        return re.search(r"^# (.*)", texts[page], re.M)[1]

    def section(name):  # its README first, then the other texts, then the programs and files
        inside = sorted((page for page in texts if page.startswith(name + "/")), key=lambda page: (
            page != name + "/README.md", page not in pages, page.count("/"), page))
        texts_, sources = [[page for page in inside if (page in pages) == of] for of in (True, False)]
        named = title(inside[0]) if inside[0] == name + "/README.md" else name
        return {named: texts_ + ([{"Programs and files": sources}] if sources else [])}

    chapters = sorted(page for page in texts if re.fullmatch(r"\d\d-[^/]+/README.md", page))
    heading, text = texts["README.md"].split("\n", 1)
    contents = "\n".join(f"- [{title(chapter)}]({chapter})" for chapter in chapters)
    picture = "![An all-reduce on a ring of four ranks](02-mpi/pictures/busbw.svg){ align=right width=560 }"
    (folder / "docs/README.md").write_text(f"---\nhide: [toc]\n---\n{heading}\n\n{picture}\n\n{contents}\n{text}")

    folders = sorted({page.split("/")[0] for page in texts if "/" in page} - {"github"})
    top = [page for page in texts if ("/" not in page or page.startswith("github")) and page != "README.md"]
    nav = ["README.md", *map(section, ["tutorials", *(folder for folder in folders if folder != "tutorials")]), {"More": top}]
    (folder / "mkdocs.yml").write_text(f'{pathlib.Path("ci/pages/mkdocs.yml").read_text()}nav: {json.dumps(nav)}\n'
                                       f'hooks: {json.dumps([os.path.abspath("ci/pages/hooks.py")])}\n')


make(pathlib.Path(sys.argv[1]))
