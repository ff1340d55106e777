#!/usr/bin/env python3
"""
tidy.py: checks the rules of style and structure that a machine can check, in the files that git tracks.

    dev/tidy.py [-v] [RULE ...]   prints the findings of the rules that fail (-v: of all) as file:line: message;
                                  exit status 1 if one fails
    dev/tidy.py --self-test       plants a violation of each rule in a temporary tree; each has to be found

A rule fails if it has more findings than its ceiling in RULES. A ceiling only goes down; the goal is 0, but for the two
counts of lines.
"""
import ast, functools, os, re, subprocess, sys, tempfile

RULES = {  # name: (ceiling, a violation as (path, text) for the self-test)
    "top_level": (0, ("{}.md", "")),
    "file_lines": (0, ("docs/a.md", "\n" * 801)),
    "function_lines": (0, ("util/a.h", "static void\nf(int x) {\n" + "    g();\n" * 70 + "}\n")),
    "columns": (0, ("docs/a.md", "a " * 51)),
    "include_circle": (0, ("util/a.h", '#include "a.h"\n')),
    "includes_down": (0, ("util/a.h", '#include "../model.h"\n')),
    "planner_and_dev": (0, ("trainer/a.h", '#include "../planner/plan.h"\n')),
    "tables": (0, ("docs/a.md", "| a |\n" * 15)),
    "product_lines": (38200, ("util/a.h", "\n")),  # goal 38,400
    "test_lines": (35439, ("dev/test/a.sh", "\n")),  # goal: what it takes to see every planted fault
}
FILE_LINES = {"train_gpt.cu": 380, "gpt.h": 320, "parallel/tensor.h": 230, "parallel/data.h": 160, "comm.h": 370,
              "test_gpt.c": 700, "README.md": 250, "Makefile": 150, "dev/dev.mk": 250}  # and every other file 800
TOP_LEVEL, FUNCTION_LINES = 24, 70
COLUMNS = {"md": 100, "c": 120, "h": 120, "cu": 120, "cuh": 120, "py": 120, "sh": 120, "mk": 120, "Makefile": 120}
GENERATED = re.compile(r"dev/test/reference/.*(?<!\.py)$|.*\.(svg|png)$|dataloader/tokenizer/unicode\.h$")
# A file includes files of its own layer, the first that its path matches, and of those before it.
LAYERS = [r"util/", r"kernels/|dev/emulator/", r"comm/collectives/", r"comm[./]", r"(model|parallel)\.h", r"parallel/",
          r"dataloader[./]", r"checkpoint/", r"methods/", r"gpt\.h", r"trainer/", r"train_gpt\.cu",
          r"planner/|dev/|docs/|test_gpt"]
TOP = ("planner/", "dev/", "test_gpt.c")  # what the trainer includes nothing of
C_LIKE = (".c", ".h", ".cu", ".cuh")
COUNTED = {"product_lines": r"(?!dev/test/|docs/).*\.(c|h|cu|cuh)", "test_lines": r"dev/test/.*\.(c|h|cu|cuh|py|sh)"}
MASKED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
FUNCTION = re.compile(r"^(?!struct|union|enum|typedef|extern \"|namespace|else)(?=[A-Za-z_])"
                      r"(?:__launch_bounds__\([^)]*\)|[^;{}=(])*?\b(?!__launch_bounds__)(\w+)\([^;{}]*\)\s*\{", re.M)

class Tree:
    """The text of the files that are tracked and not generated, by their paths."""
    def __init__(self, root):
        names = subprocess.run(["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, check=True).stdout.decode()
        self.names = [name for name in names.split("\0") if os.path.isfile(os.path.join(root, name))]
        data = {name: open(os.path.join(root, name), "rb").read() for name in self.names if not GENERATED.match(name)}
        self.text = {name: content.decode(errors="replace") for name, content in data.items() if b"\0" not in content}
        self.c_like = [name for name in self.text if name.endswith(C_LIKE)]

    @functools.lru_cache(None)
    def code(self, name):
        """Comments, strings and preprocessor lines become spaces; lines and columns stay."""
        blank = lambda match: re.sub(r"[^\n]", " ", match.group())
        return re.sub(r"^[ \t]*#.*(\\\n.*)*", blank, MASKED.sub(blank, self.text[name]), flags=re.M)

    @functools.lru_cache(None)
    def functions(self, name):
        """C as clang-format writes it: a function begins in column 0, and its closing brace stands there."""
        if name.endswith(".py"):
            nodes = [x for x in ast.walk(ast.parse(self.text[name])) if isinstance(x, ast.FunctionDef)]
            return [(x.name, x.lineno, x.end_lineno - x.lineno + 1) for x in nodes]
        found, code, end = [], self.code(name) + "\n}", 0
        for match in FUNCTION.finditer(code):
            if match.start() >= end:
                line = code[match.start():code.index("\n", match.end())]
                end = match.end() if line.count("{") == line.count("}") else code.index("\n}", match.end()) + 2
                found.append((match[1], line_of(code, match.start()), code.count("\n", match.start(), end) + 1))
        return found

    @functools.lru_cache(None)
    def includes(self, name):
        """[(line, path)] of the tracked files that it includes"""
        found = []
        for match in re.finditer(r'^\s*#\s*include\s+"([^"]+)"', self.text[name], re.M):
            paths = [os.path.normpath(os.path.join(os.path.dirname(name), match[1])), match[1]]
            found += [(line_of(self.text[name], match.end()), path) for path in paths if path in self.text][:1]
        return found

def line_of(text, offset):
    return text.count("\n", 0, offset) + 1

def layer(path):
    return next((i for i, pattern in enumerate(LAYERS) if re.match(pattern, path)), 0)

# The rules: each yields (file, line, message).
def top_level(tree):
    entries = {name.split("/")[0] for name in tree.names if name[0] != "."}
    if len(entries) > TOP_LEVEL:
        yield ".", 1, f"{len(entries)} entries, {TOP_LEVEL} allowed"

def file_lines(tree):
    for name, text in tree.text.items():
        count, limit = len(text.splitlines()), FILE_LINES.get(name, 800)
        if count > limit:
            yield name, limit + 1, f"{count} lines, {limit} allowed"

def function_lines(tree):
    for name in tree.text:
        for function, line, lines in tree.functions(name) if name.endswith((*C_LIKE, ".py")) else []:
            if lines > FUNCTION_LINES:
                yield name, line, f"{function} has {lines} lines, {FUNCTION_LINES} allowed"

def columns(tree):
    for name, text in tree.text.items():
        limit = COLUMNS.get(re.split(r"[./]", name)[-1], 10**9)
        if name.endswith(".md"):  # what a program printed has its own width
            text = re.sub(r"```output\n.*?```", lambda match: re.sub("[^\n]", "", match[0]), text, flags=re.S)
        for i, line in enumerate(text.split("\n"), 1):
            if len(line) > limit and not (name.endswith(".md") and line.startswith("|")):
                yield name, i, f"{len(line)} columns, {limit} allowed"

def include_circle(tree):
    state = {}
    def visit(name):
        state[name] = "open"
        for line, path in tree.includes(name):
            if state.get(path) == "open":
                yield name, line, f"a circle: {path} includes this file, perhaps through others"
            elif path not in state:
                yield from visit(path)
        state[name] = "done"
    for name in tree.c_like:
        yield from visit(name) if name not in state else []

def includes(tree, wrong, message):
    return [(name, line, f"includes {path}, {message}") for name in tree.c_like for line, path in tree.includes(name)
            if wrong(name, path)]

def includes_down(tree):
    yield from ((name, 1, "has no place in LAYERS") for name in tree.c_like if not re.match("|".join(LAYERS), name))
    yield from includes(tree, lambda name, path: layer(path) > layer(name) and not path.startswith(TOP),
                        "of a layer above")

def planner_and_dev(tree):
    return includes(tree, lambda name, path: path.startswith(TOP) and not name.startswith(TOP) and
                    not (name.startswith(("kernels/", "docs/ladder/")) and path.startswith("dev/emulator/")),
                    "and is the trainer's")

def tables(tree):
    for name, text in tree.text.items():
        for match in re.finditer(r"(?m)(?:^\|.*\n){15,}", text if re.match(r"docs/.*\.md", name) else ""):
            yield name, line_of(text, match.start()), "a table of more than 12 rows"

def check(rule, tree):
    """-> number, findings"""
    if rule in COUNTED:
        return sum(text.count("\n") for name, text in tree.text.items() if re.fullmatch(COUNTED[rule], name)), []
    found = sorted(globals()[rule](tree))
    return len(found), found

def self_test():
    """In a folder that git tracks: no rule finds anything before, and each finds what is planted for it."""
    clean = dict.fromkeys(["model.h", "planner/plan.h", "parallel/caat.h", "parallel/stage.h"], "")
    bad = []
    for rule, (_, (path, text)) in RULES.items():
        with tempfile.TemporaryDirectory() as folder:
            def count(files):
                for name, content in files.items():
                    os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
                    open(os.path.join(folder, name), "w").write(content)
                subprocess.run("git init -q . && git add -A", shell=True, cwd=folder, check=True)
                return check(rule, Tree(folder))[0]
            before = count(clean)
            after = count({path.format(i): text for i in range(TOP_LEVEL if "{}" in path else 1)})
            bad += [rule] if after <= before or (before and rule not in COUNTED) else []
    print(f"{len(RULES) - len(bad)} passed, {len(bad)} failed", *bad)
    return bad != []

def main(options, failed=0):
    if "--self-test" in options:
        return self_test()
    tree = Tree(os.path.dirname(os.path.abspath(__file__)) + "/..")
    for rule in [word for word in options if word[0] != "-"] or RULES:
        (count, found), ceiling = check(rule, tree), RULES[rule][0]
        for name, line, message in found if count > ceiling or "-v" in options else []:
            print(f"{name}:{line}: {message}")
        word = "FAIL" if count > ceiling else "ok" if count == ceiling else "ok, lower the ceiling:"
        print(f"{word} {rule} {count}, ceiling {ceiling}")
        failed += count > ceiling
    return failed > 0

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
