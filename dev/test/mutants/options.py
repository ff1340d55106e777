"""Faults of the options and of what follows from them. Tests: unit tests."""
import mutate

OPTIONS = "util/options.h"
SETTINGS = "trainer/settings.h"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("options: the file wins", "test_options", OPTIONS,
     "return o->given || option_take(o, value ? value : rest, error);",
     "return option_take(o, value ? value : rest, error);"),
    ("options: twice in a file", "test_options", OPTIONS, "if (o->line) return fail", "if (0) return fail"),
    ("options: a command in a file", "test_options", OPTIONS, "if (o->command) return fail", "if (0) return fail"),
    ("options: lines from 0", "test_options", OPTIONS, "for (int line = 1; text; line++)",
     "for (int line = 0; text; line++)"),
    ("options: a carriage return is part of a value", "test_options", OPTIONS, 'strchr(" \\t\\r", text[n - 1])',
     'strchr(" \\t", text[n - 1])'),
    ("options: six digits of a number", "test_options", OPTIONS,
     'if (strtod(text, NULL) != *(double*)o->value) snprintf(text, size, "%.17g", *(double*)o->value);', ""),
    ("options: a value with a line break is written", "test_options", OPTIONS, 'strpbrk(string, "\\n\\r")', "0"),
    ("options: blanks at the end are written", "test_options", OPTIONS, 'strchr(" \\t", string[strlen(string) - 1])',
     "0"),
    ("options: defaults are written as given", "test_options", OPTIONS, 'o->given ? "" : "# "', '""'),
    ("options: what is given is a comment", "test_options", OPTIONS, 'o->given ? "" : "# "', '"# "'),
    ("options: fractions are cut off", "test_options", OPTIONS, "value != floor(value)", "false"),
    ("rates: a finished model learns as fast as a new one", "test_options", SETTINGS,
     "o->init ? to_digits(usual / 10, 2) : usual", "usual"),
    ("rates: warm-up without end", "test_options", SETTINGS, "min_i64(2000, o->steps / 20)", "o->steps / 20"),
    ("rates: the wrong row of the table", "test_options", "trainer/settings.h",
     "parameters < table[i + 1].parameters", "parameters < table[i].parameters"),
    ("aliases: underscores are no hyphens", "test_options", "util/options.h",
     "word[same] == '_' ? '-' : word[same]", "word[same]"),
    ("aliases: of what is not there", "test_options", OPTIONS, "if (alias && option_find(table, n, alias->here))",
     "if (alias && alias->here)"),
    ("help: lines without end", "test_options", OPTIONS, "if (at > column && at + 1 + n > HELP_WIDTH)", "if (0)"),
    ("help: what is unset has a default", "test_options", OPTIONS,
     "if ((double)*(int64_t*)o->value >= o->low) snprintf", "snprintf"),
]


def run(test, planted):
    return mutate.unit_test(test, planted)
