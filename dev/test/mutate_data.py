#!/usr/bin/env python3
"""
mutate_data.py: is test_dataloader able to fail? Plants faults in copies of tokens.h and dataloader.h, one at a time, and runs
it there: it has to fail, to crash, or to hang (mutate.py).

    python3 dev/test/mutate_data.py [WORD]      only the faults whose description contains WORD

One line a fault: "caught" with the failing line of the test, or "MISSED". Last line "N passed, N failed": N faults were
caught, N missed. Standard library only.
"""
import sys

import mutate

TOKENS, LOADER = "tokens.h", "dataloader.h"

FAULTS = [
    # what is wrong, file, text, replacement
    ("index: any version", TOKENS, "if (version != 1)", "if (version < 1)"),
    ("index: floats are tokens", TOKENS, "code == TOKEN_FLOAT64 || code == TOKEN_FLOAT32", "code == TOKEN_FLOAT64"),
    ("index: type 0", TOKENS, "code < TOKEN_UINT8 ||", "code < 0 ||"),
    ("index: type 9", TOKENS, "code > TOKEN_UINT16)", "code >= TOKEN_TYPES)"),
    ("index: without sequences", TOKENS, "if (S < 1 || D < 2)", "if (S < 0 || D < 2)"),
    ("index: without documents", TOKENS, "if (S < 1 || D < 2)", "if (S < 1 || D < 0)"),
    ("index: sizes are not checked against 64 bits", TOKENS, "const bool fits = S <= room / 12 && D <= (room - 12 * S) / 8;",
     "const bool fits = true;"),
    ("index: modes are let through", TOKENS, "if (!fits || 12 * S + 8 * D != room)",
     "if (!fits || 12 * S + 8 * D > room)"),
    ("index: modes are not named", TOKENS, "12 * S + 8 * D + S == room", "false"),
    ("index: negative sizes", TOKENS, "if (size < 0 || begin", "if (begin"),
    ("index: where sequences begin is not looked at", TOKENS, "if (size < 0 || begin != index->tokens * width)",
     "if (size < 0)"),
    ("index: begins in tokens", TOKENS, "begin != index->tokens * width)", "begin != index->tokens)"),
    ("index: a .bin that is too long", TOKENS, "if (index->tokens * width != tokens_bytes)",
     "if (index->tokens * width > tokens_bytes)"),
    ("index: a .bin that is too short", TOKENS, "if (index->tokens * width != tokens_bytes)",
     "if (index->tokens * width < tokens_bytes)"),
    ("index: documents go back", TOKENS, "if (end < before ||", "if (end < 0 ||"),
    ("index: the first document begins anywhere", TOKENS, "(d == 0 && end != 0) ||", ""),
    ("index: the last document ends anywhere", TOKENS, "(d == index->documents && end != index->sequences)", "false"),
    ("index: one document too few is checked", TOKENS, "d <= index->documents; d++", "d < index->documents; d++"),
    ("pair: the index is not looked for", TOKENS, "if (idx && stat(idx, &st) == 0 && S_ISREG(st.st_mode))", "if (0)"),
    ("pair: an index that cannot be read is none", TOKENS, "ok = file_map(&file->index, idx, error);",
     "ok = true; if (!file_map(&file->index, idx, error)) { free(idx); return true; }"),
    ("pair: any .idx is one", TOKENS, "if (ok && !is_megatron_index(file->index.data, file->index.size)) file_unmap(&file->index);", ""),
    ("pair: the old index is passed over", TOKENS, "if (ok && foreign_format(file->index.data, file->index.size))", "if (0)"),
    ("pair: not unmapped", TOKENS, "        file_unmap(&files->file[i].index);\n", ""),
    ("pair: both halves of a match are read", TOKENS, "if (!is_second_half(found.gl_pathv, found.gl_pathc, found.gl_pathv[i]))", "if (1)"),
    ("pair: no common name", TOKENS, "if (status == GLOB_NOMATCH && asprintf", "if (0 && asprintf"),
    ("documents: not added up", TOKENS, "files->documents += documents;", "files->documents = documents;"),
    ("types: int8 has no sign", TOKENS, "case TOKEN_INT8: return ((const int8_t*)data)[i];", "case TOKEN_INT8: return data[i];"),
    ("types: int16 has no sign", TOKENS, "case TOKEN_INT16: return ((const int16_t*)", "case TOKEN_INT16: return ((const uint16_t*)"),
    ("types: int64 is cut", TOKENS, "return (uint64_t)value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;", "return (uint32_t)value;"),
    ("types: uint16 has a sign", TOKENS, "case TOKEN_UINT16: return ((const uint16_t*)", "case TOKEN_UINT16: return ((const int16_t*)"),
    ("types: the format's, not the file's", TOKENS, "file->type = index.type;", "file->type = TOKEN_INT32;"),
    ("read: width of the first file", TOKENS, "file->data + inside * token_type_bytes[file->type]", "file->data + inside * token_type_bytes[files->file->type]"),
    ("tree: the heaviest first", LOADER, "blend->weight[i] < blend->weight[lightest]", "blend->weight[i] > blend->weight[lightest]"),
    ("tree: the last of equals", LOADER, "blend->weight[i] < blend->weight[lightest]", "blend->weight[i] <= blend->weight[lightest]"),
    ("tree: a chain in the order of names", LOADER, "(lightest < 0 || blend->weight[i] < blend->weight[lightest])", "lightest < 0"),
    ("share: rounded down", LOADER, "const uint64_t twice = 2 * (n % w) * a + w;", "const uint64_t twice = 2 * (n % w) * a;"),
    ("share: products of 32 bits", LOADER, "const uint64_t twice = 2 * (n % w) * a + w;", "const uint64_t twice = (uint32_t)(2 * (n % w) * a) + w;"),
    ("share: halves are rounded down", LOADER, "const uint64_t twice = 2 * (n % w) * a + w;", "const uint64_t twice = 2 * (n % w) * a + w - 1;"),
    ("share: taken one too late", LOADER, "+ 2 * a >= 2 * w;", "+ 2 * a > 2 * w;"),
    ("share: periods are forgotten", LOADER, "return n / w * a + twice", "return twice"),
    ("source: the other half", LOADER, "node = blend->half[node][!first];", "node = blend->half[node][first];"),
    ("source: the number of the run", LOADER, "n = first ? share : n - share;", ""),
    ("source: the number of the other half", LOADER, "n = first ? share : n - share;", "n = share;"),
    ("count: of the other half", LOADER, "return blend->half[parent][0] == node ? share", "return blend->half[parent][1] == node ? share"),
    ("count: of n, not of the group", LOADER, "share = blend_share(blend, parent, of_parent, &taken);", "share = blend_share(blend, parent, n, &taken);"),
    ("reach: one too few", LOADER, "if (blend_count(blend, source, middle) <= limit)", "if (blend_count(blend, source, middle) < limit)"),
    ("weights: zeros at the end count", LOADER, "if (weight[whole + (size_t)i] != '0') decimals = i;", "decimals = i;"),
    ("weights: digits that are missing", LOADER, "units = min_i64(10 * units, blend_largest + 1);", "units = min_i64(units, blend_largest + 1);"),
    ("weights: overflow", LOADER, "units = min_i64(10 * units + (*p - '0'), blend_largest + 1);", "units = 10 * units + (*p - '0');"),
    ("weights: nothing is too much", LOADER, "if (sum > blend_largest)", "if (0)"),
    ("weights: not divided", LOADER, "weight[i] /= divisor;", ";"),
    ("weights: decimals of the last", LOADER, "decimals = more > decimals ? more : decimals;", "decimals = more;"),
    ("weights: zero", LOADER, "if (weight[i] == 0) return", "if (0) return"),
    ("weights: some", LOADER, "} else if (weighted < names.count) {", "} else if (0) {"),
    ("weights: a point is one", LOADER, "return whole + part > 0 && name", "return name"),
    ("sources: text with tokens", LOADER, "(a == TOKENS_TEXT) == (b == TOKENS_TEXT) && ", ""),
    ("sources: any vocabulary", LOADER, "&& (of_a == of_b || !of_a || !of_b)", ""),
    ("sources: unknown with nothing", LOADER, "(of_a == of_b || !of_a || !of_b)", "of_a == of_b"),
    ("sources: only neighbours agree", LOADER, "for (int k = 0; k < other->count; k++) {", "for (int k = i + 1; k < other->count && k < i + 2; k++) {"),
    ("sources: one too many", LOADER, "if (names->count > MAX_SOURCES)", "if (names->count > MAX_SOURCES + 1)"),
    ("sources: the first one's vocabulary", LOADER, "i < sources->count && !vocab; i++", "i < 1 && !vocab; i++"),
    ("sources: tokens of the last", LOADER, "tokens += sources->source[i].files.tokens;", "tokens = sources->source[i].files.tokens;"),
    ("sources: fractions of one", LOADER, "(double)weight[i] / (double)sum;", "(double)weight[i];"),
    ("mix: weights are not in it", LOADER, "h = (h ^ (uint64_t)sources->source[i].weight) * 1099511628211ull;\n        h = (h ^ (uint64_t)sources->source[i].files", "h = (h ^ (uint64_t)sources->source[i].files"),
    ("mix: sizes are not in it", LOADER, "        h = (h ^ (uint64_t)sources->source[i].files.tokens) * 1099511628211ull;\n", ""),
    ("mix: one source is one", LOADER, "return sources->count > 1 ? (int64_t)(h >> 1) : 0;", "return (int64_t)(h >> 1);"),
    ("mix: checksum without weights", LOADER, "sources->count > 1 ? (uint64_t)sources->source[i].weight : 0;", "0;"),
    ("mix: checksum in any order", LOADER, "h = (h ^ weight) * 1099511628211ull ^ tokens", "h = h ^ weight ^ tokens"),
    ("mix: the held-out part is all", LOADER, "part == PART_HELD_OUT ? trained : 0", "0"),
    ("mix: trained on all", LOADER, "part == PART_TRAINED ? trained : all, T", "all, T"),
    ("mix: one order for all", LOADER, "seed + (uint64_t)i * 0x9E3779B97F4A7C15ull", "seed"),
    ("mix: the first source's order is not the seed's", LOADER, "seed + (uint64_t)i *", "seed + (uint64_t)(i + 1) *"),
    ("mix: it ends with the last source", LOADER, "(uint64_t)mix->loader[i].count, (uint64_t)mix->count);", "(uint64_t)mix->loader[i].count * 2, (uint64_t)mix->count);"),
    ("mix: the number of the run", LOADER, "&mix->loader[source], number, error);", "&mix->loader[source], n, error);"),
    ("mix: the first loader", LOADER, "dataloader_sequence(inputs, targets, &mix->loader[source]", "dataloader_sequence(inputs, targets, &mix->loader[0]"),
    ("mix: epochs of the run", LOADER, "return (double)blend_count(&mix->blend, source, n) /", "return (double)n /"),
]


if __name__ == "__main__":
    sys.exit(mutate.main(FAULTS, {TOKENS: "test_dataloader", LOADER: "test_dataloader"}))
