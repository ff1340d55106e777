#!/usr/bin/env python3
"""
tokenizer.py: is test_tokenizer able to fail? Plants faults in copies of the tokenizer's sources, one at a time, builds the test there
and runs it: it has to fail, or to crash.

    python3 dev/test/mutants/tokenizer.py [WORD]      only the faults whose description contains WORD

One line a fault: "caught" with the first line of the test that failed, or "MISSED". Last line "N passed, N failed": N faults were caught, N
missed. Standard library only.
"""
import sys

import mutate

SPLIT, BPE, FILES, LEARN, WRITER = "dataloader/tokenizer/pretokenize.h", "dataloader/tokenizer/bpe.h", "dataloader/tokenizer/vocab_files.h", "dataloader/tokenizer/bpe_train.h", "dataloader/tokenizer.h"
TESTS = {name: "test_tokenizer" for name in (SPLIT, BPE, FILES, LEARN, WRITER)}

# What is wrong; file, exact text, replacement.
FAULTS = [
    # Splitting
    ("split: 'm is no ending", SPLIT, "c == 't' || c == 'm'", "c == 't'"),
    ("split: 'll is no ending", SPLIT, " || (c == 'l' && d == 'l')", ""),
    ("split: GPT-2's endings in any case", SPLIT, "ending_bytes(text + at, n - at, false)", "ending_bytes(text + at, n - at, true)"),
    ("split: Llama's endings in small letters only", SPLIT, "ending_bytes(text + at, n - at, true)", "ending_bytes(text + at, n - at, false)"),
    ("split: the long s is forgotten", SPLIT, "text[1] == 0xC5", "text[1] == 0xC6"),
    ("split: the last blank stays with the run", SPLIT, "end == n || last == at ? end : last", "end"),
    ("split: a run at the end is cut", SPLIT, "end == n || last == at ? end : last", "last == at ? end : last"),
    ("split: new lines do not end a run", SPLIT, "if (newline && kind != SPLIT_GPT2) return newline;", ""),
    ("split: new lines end GPT-2's run", SPLIT, "newline && kind != SPLIT_GPT2", "newline"),
    ("split: cl100k's end of a text", SPLIT, "if (end == n && kind == SPLIT_CL100K) return end;", ""),
    ("split: Llama's end of a text is cl100k's", SPLIT, "end == n && kind == SPLIT_CL100K", "end == n"),
    ("split: a carriage return is no new line", SPLIT, "c == '\\n' || c == '\\r'", "c == '\\n'"),
    ("split: four numbers in a word", SPLIT, "kind == SPLIT_QWEN2 ? 1 : 3", "kind == SPLIT_QWEN2 ? 1 : 4"),
    ("split: Qwen's numbers are Llama's", SPLIT, "kind == SPLIT_QWEN2 ? 1 : 3", "3"),
    ("split: a new line begins a word", SPLIT, "second == CHAR_LETTER && !is_newline(text[at])", "second == CHAR_LETTER"),
    ("split: any white space before a sign", SPLIT, "!(text[at] == ' ' && second == CHAR_OTHER)", "!(second == CHAR_OTHER)"),
    ("split: signs without their new lines", SPLIT, "while (end < n && is_newline(text[end])) end++;", ""),
    ("split: a tab before GPT-2's word", SPLIT, "at + (text[at] == ' ' && at + 1 < n)", "at + (text[at] <= ' ' && at + 1 < n)"),
    ("split: a broken byte is a letter", SPLIT, "if (valid == 0) return CHAR_OTHER;", "if (valid == 0) return CHAR_LETTER;"),
    ("split: cut after a sign", SPLIT, "begin + bytes == at && (found == CHAR_LETTER || found == CHAR_NUMBER)", "begin + bytes == at"),
    ("split: cut before any byte", SPLIT, "(text[at] == ' ' || text[at] == '\\n') && ends_in_word", "ends_in_word"),
    # Merging
    ("merge: the highest rank first", BPE, "(uint64_t)merge->rank << 32 | i);", "(uint64_t)(NO_RANK - merge->rank) << 32 | i);"),
    ("merge: old entries count", BPE, "if (encoder->symbol[i].rank == best >> 32) ", ""),
    ("merge: the left neighbour is not asked", BPE, "if (symbol->previous != n) symbol_meets(tokenizer, encoder, heap_count, symbol->previous, n);", ""),
    ("merge: the right neighbour is not asked", BPE, "    symbol_meets(tokenizer, encoder, heap_count, i, n);\n    if (symbol->previous", "    if (symbol->previous"),
    ("merge: the list goes wrong to the left", BPE, "if (symbol->next != n) encoder->symbol[symbol->next].previous = i;", ""),
    ("merge: heap out of order", BPE, "if (heap[child] >= last) break;", "break;"),
    ("cache: words by their length and hash", BPE, "word->bytes != n || word->text[0] != a ||", "word->bytes != n ||"),
    ("cache: the end of a word is not compared", BPE, " || word->text[2] != c", ""),
    ("cache: the middle of a word is not compared", BPE, "word->text[1] != b || ", ""),
    ("cache: one token too many is kept", BPE, "if (count > CACHED_TOKENS) return;", "if (count > CACHED_TOKENS + 1) return;"),
    ("whole words: never", BPE, "tokenizer->whole_words ? tokenizer_find(tokenizer, text, n) : -1", "-1"),
    ("added: the shortest", BPE, "if (found && token_bytes(tokenizer, found->token) >= bytes) continue;", "if (found) continue;"),
    ("added: special ones always", BPE, "(added->special && !special) || ", ""),
    ("added: never", BPE, "    if (looks_for_added(tokenizer, special))\n", "    if (0)\n"),
    ("ranks: only one way to fall apart", BPE, "for (size_t k = 1; k < n; k++) {", "for (size_t k = n - 1; k < n; k++) {"),
    ("vocabulary: two tokens of the same bytes", BPE, "if (*slot != (uint32_t)vocab)\n", "if (0)\n"),
    ("vocabulary: bytes may be missing", BPE, "if (token < 0)\n", "if (0)\n"),
    # Files
    ("files: letters of bytes", FILES, "b - 127 + 33", "b - 127 + 34"),
    ("files: base64 without its padding", FILES, "return count - (int64_t)padding;", "return count;"),
    ("files: base64's padding anywhere", FILES, "if (digit < 0) return -1;", ""),
    ("files: a rank twice", FILES, "if (text->n) return fail(error, \"%s:%d: the rank", "if (0) return fail(error, \"%s:%d: the rank"),
    ("files: llm.c's end is not looked at", FILES, "file->size - at - 1 < n", "0"),
    ("files: normalizers are ignored", FILES, "!read_normalizer(json, root, error) || ", ""),
    ("files: splits twice", FILES, "return !splits || json_fail(json, second", "return true || json_fail(json, second"),
    ("files: any expression is Llama's", FILES, "if (is_string(regex, split_texts[i].text)) {", "if (i == 1) {"),
    ("files: merges whose result is no token", FILES, "if (x < 0 || y < 0 || both < 0) return false;", "if (x < 0 || y < 0) return false;"),
    ("files: an added token's other name", FILES, "if (added && (text->n != member->name_bytes ||", "if (added && (0 &&"),
    ("files: the version line is a merge", FILES, "memcmp(line, \"#version\", 8) == 0) continue;", "memcmp(line, \"#version\", 8) == 1) continue;"),
    ("files: whole words are not written", FILES, "tokenizer->whole_words ? \"true\" : \"false\"", "\"false\""),
    ("files: the split is not written", FILES, "if (split_texts[i].split == split) json", "if (split_texts[i].split == SPLIT_LLAMA3) json"),
    ("files: merges in any order", FILES, "qsort(sorted, (size_t)n,", "if (0) qsort(sorted, (size_t)n,"),
    ("files: a quote is not escaped", FILES, "if (*letter == '\"' || *letter == '\\\\') fputc('\\\\', out);", ""),
    # Learning
    ("learning: ties by the larger numbers", LEARN, "a->pair < b->pair;", "a->pair > b->pair;"),
    ("learning: counts that have fallen", LEARN, "if (entry->count == top.count && top.count >= least) return true;", "if (top.count >= least) return true;"),
    ("learning: each word once", LEARN, "times * learning->words->word[learning->symbol[i].word].count", "times"),
    ("learning: pairs to the left stay", LEARN, "    count_pair(learning, symbol->previous, -1);\n", ""),
    ("learning: pairs to the right stay", LEARN, "    count_pair(learning, symbol->next, -1);\n", ""),
    ("learning: new pairs to the left are missing", LEARN, "    count_pair(learning, symbol->previous, 1);\n", ""),
    ("learning: new pairs to the right are missing", LEARN, "    count_pair(learning, i, 1);\n}", "}"),
    ("learning: pairs that are there once", LEARN, "top.count >= least) return true;", "top.count >= 1) return true;"),
    ("learning: one token too many", LEARN, "learn_merges(&learning, vocab - 1, least);", "learn_merges(&learning, vocab, least);"),
    ("learning: bytes in their own order", LEARN, "const int b = letter_to_byte(c);", "const int b = c < 256 ? (int)c : -1;"),
    ("learning: words of other threads", LEARN, "other->word[i].n, other->word[i].count);", "other->word[i].n, 1);"),
    # Showing
    ("writer: the first byte of a token alone", WRITER, "for (size_t i = 0; i < n; i++) text_writer_put(writer, bytes[i]);", "if (n) text_writer_put(writer, bytes[0]);"),
    ("writer: an unknown token is nothing", WRITER, "if (n == 0) text_writer_put(writer, 256);", ""),
]

if __name__ == "__main__":
    sys.exit(mutate.main(FAULTS, TESTS))
