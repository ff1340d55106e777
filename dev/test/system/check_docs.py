#!/usr/bin/env python3
"""
check_docs.py: are the docs true? Links, names of files, functions, options and targets, and what commands print.

    dev/test/system/check_docs.py [FILE...]     all checks of the files (all: docs/, each README.md, ...)
    --static    no commands        --quick    of the commands only the blocks ```sh quick
    --update    writes what the commands printed into the ```output blocks of FILE...; lines `...` stay where all
                others still match

A block ```sh quick or ```sh run is run by sh -e in the project's root with the programs that `make book` builds, and
what it printed is compared with the block ```output below it: a line `...` stands for any lines, runs of blanks are
one, integers are equal, numbers with a point equal within 1 %; times, speeds and the line `device` are free, and the
trainer's line `busy` is left out. A block may write to build/book/, which is removed before each file. A block that
needs mpirun is left out where there is none.
The last line is "N passed, N failed". Standard library only.
"""
import argparse, collections, difflib, functools, glob, os, re, shutil, signal, subprocess, textwrap, time

import checks

CHAPTERS = ("step memory tensor sequence schedules data_parallel collectives caat async_dp planner fault_tolerance "
            "gpu_kernels precision").split()
TEMPLATE = ["The formula", "The picture", "Run it", "In the code", "Problems"]  # the sections of a chapter, in order
DOCS_LINES = 4900
LIMIT = {"quick": 60, "run": 180}  # seconds, on a slow machine
CODE = r"[\w./-]+\.(?:h|c|cu|cuh|py|sh|mk)"
REFERENCE = re.compile(rf"`({CODE})`((?:(?:,| and|;)?\s+`\w+(?:\(\))?`)+)")  # `file` `name()`, `name()`
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
# Files and options of other projects
FOREIGN = {"train_gpt2.c", "--reset-attention-mask", "--reset-position-ids"}
TOOLS = ("scripts", "dev/data", "dev/plot", "dev/bench", "dev/experiments", "dev/test/gpu_check.sh",
         "dev/test/system/check_docs.py", "planner")
MASKED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)

UNIT = (r"(?:ms|us|ns|s|min|minutes|hours?|h)(?![\w/])|(?:k|M|G|T)? ?(?:tok(?:ens)?/s|bytes/s|B/s|bit/s|FLOP/s)(?!\w)")
FREE = [(re.compile(r"\bmfu +[\d.]+ ?%"), "mfu <free>"),
        (re.compile(r"(?<![\w.:])\d+:\d\d(?::\d\d)?(?![\w:])"), "<time>"),
        (re.compile(rf"(?<![\w.])[-+]?\d[\d,.]*(?:e[-+]?\d+)? ?(?:{UNIT})"), "<time>"),
        (re.compile(r"(?<![\w.])[\d.]+ ?% of (?:the )?(?:peak|step|time|it)\b"), "<free>")]
NUMBER = re.compile(r"(?<![\w.])([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w)")

def files_of_tree():
    found = set()
    for place, folders, names in os.walk("."):
        folders[:] = [f for f in folders if f[0] != "." and not f.startswith("build") and f != "__pycache__"]
        found.update(os.path.normpath(os.path.join(place, name)) for name in names)
    return found

class Tree:
    def __init__(self):
        self.files = dict.fromkeys(sorted(files_of_tree()))
        self.names = {os.path.basename(path) for path in self.files}
        self.top = {path.split("/")[0] for path in self.files if "/" in path}

    def text(self, path):
        if self.files.get(path) is None:
            with open(path, encoding="utf-8", errors="replace") as f:
                self.files[path] = f.read()
        return self.files[path]

    def exists(self, path):
        """A file or folder of the project, a pattern of some, or a file's name without its folder"""
        return (path in self.names or any(x == path or x.startswith(path.rstrip("/") + "/") for x in self.files) or
                ("*" in path and bool(glob.glob(path))))

    def code(self, path):
        return MASKED.sub(" ", self.text(path)) if path.endswith((".h", ".c", ".cu", ".cuh")) else self.text(path)

    def declares(self, path, name):
        """Whether the file defines or declares it; a use or a comment does not count."""
        word = re.escape(name.rstrip("()"))
        if path.endswith((".py", ".sh", ".mk")):
            return re.search(rf"(?m)^\s*(?:def|class) {word}\b|^{word}\(\)|^{word}\b[^=\n]*[:=]", self.text(path))
        forms = [rf"^(?![ \t#])[^\n;={{}}]*\b{word}\(", rf"^[ \t]*#[ \t]*define[ \t]+{word}\b", rf"\(\*{word}\)\("]
        if not name.endswith("()"):
            forms += [rf"\b(?:struct|enum|union)\s+{word}\b\s*[{{;]", rf"\}}\s*{word}\s*;",
                      rf"^[ \t]*(?!return\b)(?:[\w*, \t]+[\s*])?{word}\b\s*(?:\[[^\]\n]*\]\s*)*(?:=|;|,|:|$|\}})"]
        return re.search("(?m)" + "|".join(forms), self.code(path))

    @functools.cached_property
    def functions(self):
        """Every name that some file's code follows with a parenthesis"""
        sources = [x for x in self.files if re.search(r"\.(h|c|cu|cuh|py|sh)$", x)]
        return {name for path in sources for name in re.findall(r"\b(\w+)\(", self.code(path))}

    def help(self, program):
        ran = subprocess.run([f"./{program}", "--help"], stdout=subprocess.PIPE, text=True, check=True)
        return set(re.findall(r"(?m)^ +(--[a-z][\w-]*)", ran.stdout)) | {"--help", "--version"}

    def targets(self):
        text = "\n".join(self.text(x) for x in self.files if x == "Makefile" or re.fullmatch(r"dev/\w+\.mk", x))
        heads = re.findall(r"(?m)^(?![#\t ])([^:=\n#]+):(?!=)", text)
        stems = {os.path.splitext(name)[0] for name in self.names if name.endswith((".c", ".cu"))}
        return {word for head in heads for word in head.split()}, stems

class Doc:
    """A Markdown file: its text without code blocks (lines stay), its blocks, its inline code and headings"""
    def __init__(self, tree, path):
        self.tree, self.path, self.blocks, prose, block = tree, path, [], [], None
        self.lines = tree.text(path).split("\n")
        for i, line in enumerate(self.lines):
            fence = re.match(r" *```(.*)$", line)
            if fence and block is None:
                block = {"kind": fence[1].strip(), "line": i + 1, "text": []}
            elif fence:
                self.blocks.append(dict(block, end=i + 1))
                block = None
            elif block is not None:
                block["text"].append(line)
            prose.append("" if fence or block is not None else line)
        self.prose = "\n".join(prose)
        self.spans = [(self.line_of(m), " ".join(m[1].split())) for m in re.finditer(r"`([^`]+)`", self.prose)]
        self.outputs = {}
        for before, after in zip(self.blocks, self.blocks[1:]):
            if after["kind"] == "output" and not "".join(self.lines[before["end"]:after["line"] - 1]).strip():
                self.outputs[before["line"]] = after

    def line_of(self, match):
        return match.string.count("\n", 0, match.start()) + 1

    def anchors(self):
        seen, found = collections.Counter(), set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", self.prose))
        for title in re.findall(r"(?m)^#{1,6} +(.*?) *#*$", self.prose):
            title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        return found

    def commands(self):
        """(line, command): those of sh blocks, with continued lines joined, and inline code"""
        for block in self.blocks:
            if block["kind"].split(" ")[0] in ("sh", "bash"):
                text = re.sub(r"\\\n", "  ", "\n".join(block["text"]))
                for i, command in enumerate(text.split("\n")):
                    yield block["line"] + 1 + i, re.sub(r"(^|\s)#.*", "", command)
        yield from self.spans

def check_links(doc, used):
    plain = re.sub(r"`[^`]*`", lambda m: "\n" * m[0].count("\n"), doc.prose)
    for match in re.finditer(r"\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"", plain):
        link, line = match[1] or match[2], doc.line_of(match)
        path, _, anchor = link.partition("#")
        if re.match(r"https?:|mailto:", link):
            continue
        target = os.path.normpath(os.path.join(os.path.dirname(doc.path), path)) if path else doc.path
        used.add(target)
        if not os.path.exists(target):
            yield line, f"the link {link} leads nowhere"
        elif anchor and target.endswith(".md") and anchor not in Doc(doc.tree, target).anchors():
            yield line, f"the link {link}: {target} has no heading #{anchor}"

def check_names(doc):
    tree = doc.tree
    for match in REFERENCE.finditer(doc.prose):
        path, line = match[1], doc.line_of(match)
        found = [path] if path in tree.files else [x for x in tree.files if x.endswith("/" + path)]
        for name in re.findall(r"`(\w+(?:\(\))?)`", match[2]) if found else []:
            if not any(tree.declares(x, name) for x in found):
                yield line, f"{path} does not define {name}"
    for line, span in doc.spans:
        if re.fullmatch(r"\w+\(\)", span) and span[:-2] not in tree.functions:
            yield line, f"no file has a function {span}"
        if re.fullmatch(CODE, span) and not re.search(r"NAME|^X\.h|^build/", span) and span not in FOREIGN:
            if not tree.exists(span):
                yield line, f"there is no file {span}"
    for line, command in doc.commands():
        for word in command.split():
            word = re.sub(r"^\./|[,;:)]*$", "", word.strip("\"'`$("))
            if PATH.fullmatch(word) and word.split("/")[0] in tree.top and "/" in word and not tree.exists(word) and \
                    not re.search("NAME|SUITE", word):
                yield line, f"there is no file {word}"

def check_options(doc, options, others, targets):
    rules, stems = targets
    for line, command in doc.commands():
        command = re.sub(r"\"[^\"]*\"|'[^']*'", " ", re.sub(r"\$\(([^)]*)\)", r" ; \1 ; ", command))
        for part in re.split(r"[|;&]+", command):
            program = re.search(r"(?<!\S)\./(train_gpt|plan)(?!\S)(.*)", part)
            known = options[program[1]] if program else others
            bare = part if re.match(r"\s*--[a-z]", part) else ""
            for word in re.findall(r"(?<![\w-])--[a-z][\w-]*", program[2] if program else bare):
                if word not in known and word not in FOREIGN:
                    yield line, f"{'./' + program[1] if program else 'no program'} has no option {word}"
            make = re.fullmatch(r"\s*make((?: +(?:-\w+|[A-Z_]+=\S*|[\w./%-]+))+)\s*", part)
            for word in make[1].split() if make else []:
                program = word.startswith("build/") and os.path.basename(word) in stems
                if not re.match(r"-|\w+=", word) and word not in rules and not program:
                    yield line, f"make has no target {word}"

def check_chapter(doc):
    """The sections of TEMPLATE in their order; every answer to a problem is run."""
    if doc.path not in [f"docs/{x}.md" for x in CHAPTERS]:
        return
    if [title for title in re.findall(r"(?m)^## +(.*?) *$", doc.prose) if title in TEMPLATE] != TEMPLATE:
        yield 1, f"a chapter has the headings {', '.join(TEMPLATE)}, in this order"
    for match in re.finditer(r"(?s)<details>.*?</details>", doc.prose):
        begin = doc.line_of(match)
        if not any(begin < b["line"] < begin + match[0].count("\n") and b["line"] in doc.outputs and
                   b["kind"] in ("sh quick", "sh run") for b in doc.blocks):
            yield begin, "this answer has no block that is run and whose output stands below it"

def check_static(tree, docs, every):
    """[(path, line, message)]; every: whether all docs are checked, not some"""
    options = {program: tree.help(program) for program in ("train_gpt", "plan")}
    tools = "\n".join(tree.text(x) for x in tree.files if x.startswith(TOOLS) and not x.endswith(".md"))
    declared = {f"--{x}" for x in re.findall(r'"([a-z][a-z-]*)",', tools)}  # by programs in C
    others = declared.union(re.findall(r"(?<![\w-])--[a-z][\w-]*", tools), *options.values())
    found, used, targets = [], set(), tree.targets()
    for doc in docs:
        for check in (check_links(doc, used), check_names(doc), check_options(doc, options, others, targets),
                      check_chapter(doc)):
            found += [(doc.path, line, message) for line, message in check]
        if len([line for line in doc.lines if re.match(r" *```", line)]) % 2:
            found.append((doc.path, len(doc.lines), "a block ``` does not end"))
        found += [(doc.path, b["line"], f"no block that is run stands above this ```{b['kind']}") for b in doc.blocks
                  if b["kind"] == "output" and b not in doc.outputs.values()]
    if every:
        found += [(x, 1, "no document shows it") for x in tree.files if x.startswith("docs/images/") and x not in used]
        found += [("docs", 1, f"there is no chapter {x}.md") for x in CHAPTERS if f"docs/{x}.md" not in tree.files]
        lines = sum(tree.text(x).count("\n") for x in tree.files if x.startswith("docs/") and x.endswith(".md"))
        found += [("docs", 1, f"{lines} lines of Markdown, {DOCS_LINES} allowed")] if lines > DOCS_LINES else []
    return sorted(set(found))

def words(line):
    """The line's words, and its numbers as (value, has a point); what is free, as a word"""
    for pattern, replacement in FREE:
        line = pattern.sub(replacement, line)
    found = []
    for i, part in enumerate(NUMBER.split(line)):
        found += [(float(part.replace(",", "")), "." in part or "e" in part)] if i % 2 else part.split()
    return found

def same(expected, got):
    a, b = words(expected), words(got)
    def equal(x, y):
        return x == y or isinstance(x, tuple) and isinstance(y, tuple) and \
            abs(x[0] - y[0]) <= 0.01 * max(abs(x[0]), abs(y[0])) * (x[1] or y[1])
    return a[:1] == b[:1] == ["device"] or len(a) == len(b) and all(map(equal, a, b))  # device: the machine

def fitted(expected, got):
    """The line of got that each expected line has, None for a line `...`; None where they do not match"""
    if not expected:
        return None if got else []
    if expected[0].strip() == "...":
        rests = (fitted(expected[1:], got[i:]) for i in range(len(got) + 1))  # after the lines that it stands for
        return next(([None] + rest for rest in rests if rest is not None), None)
    rest = fitted(expected[1:], got[1:]) if got and same(expected[0], got[0]) else None
    return None if rest is None else [got[0]] + rest

def run_block(block):
    """-> exit status (None: too slow), lines, seconds, files that it left elsewhere"""
    before, begin = files_of_tree(), time.time()
    env = dict(os.environ, OMPI_MCA_mpi_yield_when_idle="1", TERM="dumb")
    for name in ("MAKEFLAGS", "MAKELEVEL"):  # under make a block's own make would print its folder, or of a jobserver
        env.pop(name, None)
    script = textwrap.dedent("\n".join(block["text"]))
    script = re.sub(r"(?<![\w/])build/(?!book/|bf16/)", os.environ.get("BUILD", "build") + "/", script)
    with subprocess.Popen(["sh", "-e", "-c", script], env=env, encoding="utf-8", errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True) as shell:
        try:
            text, status = shell.communicate(timeout=LIMIT[block["kind"].split()[1]])[0], shell.returncode
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGTERM)  # mpirun then ends its ranks
            text, status = shell.communicate()[0], None
    lines = [line.rstrip() for line in text.expandtabs().rstrip("\n").split("\n")] if text.strip() else []
    lines = [line for line in lines if not line.startswith("busy      ")]  # by whatever else runs on this machine
    return status, lines, time.time() - begin, sorted(files_of_tree() - before)

def check_block(doc, block, new):
    """-> what is wrong with it, seconds; new: None, or {line of the output block: lines}"""
    status, got, seconds, left = run_block(block)
    output, where = doc.outputs.get(block["line"]), f"{doc.path}:{block['line']}:"
    expected = textwrap.dedent("\n".join(output["text"])).split("\n") if output and output["text"] else []
    fits = fitted(expected, got)
    said = [f"{where} left {x}, not in build/book/" for x in left]
    if status != 0:
        limit = LIMIT[block["kind"].split()[1]]
        said += [f"{where} " + (f"exit status {status}" if status else f"did not end within {limit} s"), *got[-5:]]
    elif new is not None and output and not said:
        indent = re.match(" *", doc.lines[block["line"] - 1])[0]
        new[output["line"]] = [(indent + (line or "...")).rstrip() if fits else (indent + line).rstrip()
                               for line in fits or got]
    elif not said and output and fits is None:
        said = [f"{doc.path}:{output['line']}: expected and printed:", *difflib.ndiff(expected, got)]
    elif not said and got and not output:
        said = [f"{where} it printed {len(got)} lines, and no ```output stands below: {got[0]}"]
    return said, seconds

def check_commands(docs, kinds, update):
    has_mpi = shutil.which(os.environ.get("MPIRUN") or "mpirun")
    for doc in docs:
        new = {} if update else None
        shutil.rmtree("build/book", ignore_errors=True)
        os.makedirs("build/book")
        for block in [b for b in doc.blocks if b["kind"] in kinds]:
            if not has_mpi and any("mpirun" in line for line in block["text"]):
                print(f"left out  {doc.path}:{block['line']}: there is no mpirun")
                continue
            said, seconds = check_block(doc, block, new)
            checks.check(not said, f"{doc.path}:{block['line']}: {block['kind']}, {seconds:.1f} s")
            print(*said, sep="\n", end="\n" if said else "", flush=True)
        for block in [b for b in reversed(doc.blocks) if update and b["line"] in new]:
            doc.lines[block["line"]:block["end"] - 1] = new[block["line"]]
        if update:
            with open(doc.path, "w", encoding="utf-8") as f:
                f.write("\n".join(doc.lines))

def main():
    parser = argparse.ArgumentParser(description="check the docs: links, names, options, and what commands print")
    parser.add_argument("files", nargs="*", metavar="FILE")
    for option in ("static", "quick", "update"):
        parser.add_argument(f"--{option}", action="store_true")
    options = parser.parse_args()
    if options.update and not options.files:
        parser.error("--update needs FILE...")
    paths = [os.path.relpath(os.path.realpath(x), checks.ROOT) for x in options.files]
    os.chdir(checks.ROOT)
    tree = Tree()
    usual = re.compile(r"docs/(ladder/)?[^/]+\.md|(planner/)?README\.md|CONTRIBUTING\.md")
    paths = paths or sorted(filter(usual.fullmatch, tree.files))
    docs = [Doc(tree, path) for path in paths]
    found = check_static(tree, docs, not options.files)
    for path, line, message in found:
        print(f"FAIL  {path}:{line}: {message}")
    checks.failed = len({path for path, _, _ in found})
    checks.passed = len({*paths, *(path for path, _, _ in found)}) - checks.failed
    if not options.static:
        check_commands(docs, ["sh quick"] if options.quick else ["sh quick", "sh run"], options.update)
    checks.finish()

if __name__ == "__main__":
    main()
