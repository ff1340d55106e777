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
    "step_functions": (0, ("train_gpt.cu", "int main(void) {\n" + "    g();\n" * 24 + "}\n")),
    "columns": (0, ("docs/a.md", "a " * 51)),
    "include_circle": (0, ("util/a.h", '#include "a.h"\n')),
    "includes_down": (0, ("util/a.h", '#include "../model.h"\n')),
    "planner_and_dev": (0, ("trainer/a.h", '#include "../planner/plan.h"\n')),
    "methods_hooks": (0, ("trainer/a.h", '#include "../methods/caat.h"\n')),
    "comma_assignments": (0, ("util/a.h", "void f(int x) {\n    if (x) s->a[1] = g(1, 2), s->b += 1;\n}\n")),
    "conditionals": (0, ("util/a.h", "static int a = x ? f(1, 2) : (y ? 3 : 4);\n")),
    "loop_guards": (0, ("util/a.h", "void f(int n) {\n    for (int i = 0; i < n && s->on; i++) g(i);\n}\n")),
    "caat_mentions": (0, ("gpt.h", "// CAAT-Net\n" * 3)),
    "async_mentions": (0, ("gpt.h", "struct AsyncDp* x;\n" * 11)),
    "arch_features": (0, ("util/a.h", "static ModelConfig m = {1, 2};\n")),
    "tables": (0, ("docs/a.md", "| a |\n" * 15)),
    "phrases": (0, ("util/a.h", "// It was left\n// far away.\n")),
    "product_lines": (38192, ("util/a.h", "\n")),  # goal 47,200
    "test_lines": (42529, ("dev/test/a.sh", "\n")),  # goal: what it takes to see every planted fault
}
FILE_LINES = {"train_gpt.cu": 1100, "gpt.h": 320, "parallel/tensor.h": 230, "parallel/data.h": 160, "comm.h": 370,
              "test_gpt.c": 700, "README.md": 250, "Makefile": 150, "dev/dev.mk": 250}  # and every other file 800
TOP_LEVEL, FUNCTION_LINES, STEP_FUNCTIONS = 24, 70, {"attention_branch_forward": 30, "main": 25,
                                                        "train": 45}
COLUMNS = {"md": 100, "c": 120, "h": 120, "cu": 120, "cuh": 120, "py": 120, "sh": 120, "mk": 120, "Makefile": 120}
GENERATED = re.compile(r"dev/test/reference/.*(?<!\.py)$|.*\.(svg|png)$|dataloader/tokenizer/unicode\.h$")
# A file includes files of its own layer, the first that its path matches, and of those before it.
LAYERS = [r"util/", r"kernels/|dev/emulator/", r"comm/collectives/", r"comm[./]", r"(model|parallel)\.h", r"parallel/",
          r"dataloader[./]", r"checkpoint/", r"methods/", r"gpt\.h", r"trainer/", r"train_gpt\.cu",
          r"planner/|dev/|docs/|test_gpt"]
TOP = ("planner/", "dev/", "test_gpt.c")  # what the trainer includes nothing of
METHODS_HOOKS = {"parallel/tensor.h", "trainer/settings.h", "trainer/trainer.h"}  # the files that call methods/
C_LIKE = (".c", ".h", ".cu", ".cuh")
PHRASES = ["(leav(e|es|ing)|left) (\\S+ ){0,4}away", "the begin", "inside of", "as ever", "(is|are|was|were|be) told",
           "nobody", "so many", "by way of", "foretold", "comes? to grief", "go(es)? on with", "taken up",
           "on (its|their) way", "alike", "not believed", "stood still", "stands? still"]
SPACE = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:(?://|#|\*)[ \t]*)?)"  # a comment's lines are one text
MENTIONS = {  # rule: (files, what they mention, on how many lines they may)
    "caat_mentions": (r"gpt\.h|train_gpt\.cu", r"(?i)\w*caat\w*", 2),
    "async_mentions": (r"gpt\.h|train_gpt\.cu", r"(?i)\w*async\w*|\w*diloco\w*|\w*s3gd\w*", 10),
    "arch_features": (r"(?!model\.h).*\.(c|h|cu|cuh)", r"arch [!=]= ARCH_\w+|ModelConfig \w+ = \{(?=[^.}0])", 0),
    "tables": (r"docs/.*\.md", r"(?m)(?:^\|.*\n){15,}", 0),  # of more than 12 rows
    "phrases": (r".*(?<!dev/tidy\.py)", r"(?i)\b(?:" + "|".join(PHRASES).replace(" ", SPACE) + r")(?!\w)", 0),
}
COUNTED = {"product_lines": r"(?!dev/test/|docs/).*\.(c|h|cu|cuh)", "test_lines": r"dev/test/.*\.(c|h|cu|cuh|py|sh)"}
MASKED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
FUNCTION = re.compile(r"^(?!struct|union|enum|typedef|extern \"|namespace|else)(?=[A-Za-z_])"
                      r"(?:__launch_bounds__\([^)]*\)|[^;{}=(])*?\b(?!__launch_bounds__)(\w+)\([^;{}]*\)\s*\{", re.M)
SETS = r"\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)"
ASSIGNMENT = re.compile(r"\s*(?!float\b)\**\w*(?:\s*(?:->|\.)\s*\w+|\+\+)*" + SETS)
LOOP = re.compile(r"^( *)(?:\S.*)?\bfor \(([^;{}]*);([^;|{}]*&&[^;|{}]*);([^\n]*(?:\n(?:\1 +[^\n]*)?)*)", re.M)
PATH = r"(\w+(?:(?:->|\.)\w+)*)"
GUARD = re.compile(rf"\s*!?{PATH}(?:\s*(?:[=!<>]=|[<>])\s*{PATH})?\s*")

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

    def statements(self, name):
        """(line, code) up to each of ; { } that no parentheses enclose"""
        code, depth, begin = self.code(name), 0, 0
        for match in re.finditer(r"[;{}()]", code):
            depth = 0 if code.startswith("\n}", match.start() - 1) else depth + {"(": 1, ")": -1}.get(match[0], 0)
            if match[0] not in "()" and depth <= 0:
                yield line_of(code, re.compile(r"\s*").match(code, begin).end()), code[begin:match.end()]
                begin = match.end()

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

def replace_brackets(code, value):
    """Each bracket by value(match), the innermost ones first"""
    replaced = True
    while replaced:
        code, replaced = re.subn(r"[({\[][^][(){}]*[])}]", value, code)
    return code

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

def function_lines(tree, files=r".*\.(c|h|cu|cuh|py)$", limits={}, limit=FUNCTION_LINES):
    for name in tree.text:
        for function, line, lines in tree.functions(name) if re.match(files, name) else []:
            if lines > limits.get(function, limit):
                yield name, line, f"{function} has {lines} lines, {limits.get(function, limit)} allowed"

def step_functions(tree):
    return function_lines(tree, r"gpt\.h|train_gpt\.cu|trainer/", STEP_FUNCTIONS, 10**9)

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
    yield from includes(tree, lambda name, path: layer(path) > layer(name) and not path.startswith(TOP) and
                        not (path.startswith("methods/") and name in METHODS_HOOKS), "of a layer above")

def planner_and_dev(tree):
    return includes(tree, lambda name, path: path.startswith(TOP) and not name.startswith(TOP) and
                    not (name.startswith("kernels/") and path.startswith("dev/emulator/")), "and is the trainer's")

def methods_hooks(tree):
    return includes(tree, lambda name, path: path.startswith("methods/") and name not in METHODS_HOOKS and
                    not name.startswith(TOP + ("methods/",)), "and is not in METHODS_HOOKS")

def comma_assignments(tree):
    head = re.compile(r"(?:\s|(?:if|for|while|else|do)\b|case\b[^:]*:|default:)*")
    for name in tree.c_like:
        for line, text in tree.statements(name):
            if "," in text and text.count("=") > 1 and text.endswith(";"):
                sets = [ASSIGNMENT.match(x) is not None for x in head.sub("", replace_brackets(text, ""), 1).split(",")]
                if sets[0] and sum(sets) > 1:
                    yield name, line, "assignments chained by commas"

def conditionals(tree):
    def count(text):  # in one element of it; a control character stands for each ?: in a bracket
        return max(len(re.findall("[?\1]", x)) if "?" in x else max(map(len, re.findall("\1+", x)), default=0)
                   for x in re.split("[,;]", text))
    for name in tree.c_like:
        for line, text in tree.statements(name):
            if text.count("?") > 1:
                n = count(replace_brackets(text, lambda match: f" {chr(1) * count(match[0])} "))
                if n > 1:
                    yield name, line, f"{n} ?: in one expression (an argument of a call is one of its own)"

def loop_guards(tree):
    for name in tree.c_like:
        for match in LOOP.finditer(tree.code(name)):
            for guard in map(GUARD.fullmatch, match[3].split("&&")):
                paths = [x for x in guard.groups() if x and not x.isupper() and not x[0].isdigit()] if guard else []
                if paths and all(is_steady(path, match[2], match[3] + match[4], tree.code(name)) for path in paths):
                    yield name, line_of(match.string, match.start(2)), f"an if before the loop: {guard[0].strip()}"

def is_steady(path, init, loop, code):
    """Nothing in the loop assigns it, takes its address, or hands to a function what it is part of."""
    root, last = re.match(r"\w+", path)[0], re.search(r"\w+$", path)[0]
    either = f"(?:{root}|{last})"
    changes = rf"(?:\+\+|--|&)(?:\w+(?:->|\.))*{either}\b|\b{either}(?:\s*\[[^]]*\])*(?:\s*(?:\+\+|--)|{SETS})"
    is_fact = re.search(r"\b(?:model|mesh|layout|settings|config)\b(?:->|\.)", path)
    if path == root:
        elsewhere = re.search(rf"^(?:static|extern)[^;({{]*\b{root}\b[^;({{]*[;=]", code, re.M)
    else:
        elsewhere = not is_fact and re.search(rf"[(,]\s*{root}\s*[,)]", loop)
    return not (elsewhere or re.search(rf"\b{root}\s*=", init) or re.search(changes, loop))

def mentions(tree, files, pattern, allowed):
    found = {(name, line_of(text, match.start())): (name, line_of(text, match.start()), f"says {match[0]!r:.60}")
             for name, text in tree.text.items() if re.fullmatch(files, name) for match in re.finditer(pattern, text)}
    return list(found.values())[allowed:]

def check(rule, tree):
    """-> number, findings"""
    if rule in COUNTED:
        return sum(text.count("\n") for name, text in tree.text.items() if re.fullmatch(COUNTED[rule], name)), []
    found = sorted(mentions(tree, *MENTIONS[rule]) if rule in MENTIONS else globals()[rule](tree))
    return len(found), found

def self_test():
    """In a folder that git tracks: no rule finds anything before, and each finds what is planted for it."""
    clean = dict.fromkeys(["model.h", "planner/plan.h", "methods/caat.h", "parallel/stage.h"], "")
    clean["util/b.h"] = """void f(int n) {  // a "?" in b ? c ? d : e is no rule's
    const int a = 1, b = f(a ? 1 : 2, n ? 3 : 4);
    for (int i = 0, j = 0; i < n && b && g(&b) && i < s->n; i++, j = i, h(1, s)) x[i] = (Y){.a = 1, .b = 2};
}
"""
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
