#!/usr/bin/env python3
"""
documents.py: are the tests of documents in sequences able to fail? Plants faults in copies of what finds them, and of the
CPU's attention and positions, one at a time, as data.py does (mutate.py). Those of the CUDA kernels are in
kernels.py.

    python3 dev/test/mutants/documents.py [WORD]      only the faults whose description contains WORD
"""
import sys

import mutate

TOKENS, LOADER, ATTENTION, EMBEDDING = "dataloader/token_files.h", "dataloader.h", "kernels/attention.h", "kernels/embedding.h"

FAULTS = [
    # what is wrong, file, text, replacement
    ("seen: positions of the first sequence", ATTENTION, "t - s->positions[(int64_t)b * s->T + t]", "t - s->positions[t]"),
    ("seen: one key too many", ATTENTION, "t - s->positions[(int64_t)b * s->T + t]", "(t - s->positions[(int64_t)b * s->T + t] + 1) / 2 * 2 - 1"),
    ("blocks: the next one", ATTENTION, "return first_key(s, b, index * ATT_BLOCK) / ATT_BLOCK;",
     "return (first_key(s, b, index * ATT_BLOCK) + 1) / ATT_BLOCK;"),
    ("mask: only where the first query does not see all", ATTENTION, "first_key(s, b, query + rows - 1) <= key)", "first_key(s, b, query) <= key)"),
    ("mask: the first key is never masked", ATTENTION, "first_key(s, b, query + rows - 1) <= key)", "first_key(s, b, query + rows - 1) <= key + 1)"),
    ("mask: one key too few", ATTENTION, "first_key(s, b, query + t) <= key + k) t++;", "first_key(s, b, query + t) <= key + k + 1) t++;"),
    ("mask: one key too many", ATTENTION, "first_key(s, b, query + t) <= key + k) t++;", "first_key(s, b, query + t) < key + k) t++;"),
    ("mask: one query too few", ATTENTION, "for (int unseen = t; unseen", "for (int unseen = t + 1; unseen"),
    ("mask: not forward", ATTENTION, "    mask_documents(f->scores, s, b, i, j);\n", ""),
    ("mask: not backward", ATTENTION, "    mask_documents(f->p, s, task->b, query, key);\n", ""),
    ("mask: blocks change places", ATTENTION, "mask_documents(f->p, s, task->b, query, key)", "mask_documents(f->p, s, task->b, key, query)"),
    ("softmax: begins at -infinity", ATTENTION, "q->max[t] = -FLT_MAX", "q->max[t] = -INFINITY"),
    ("forward: begins with the last query's block", ATTENTION, "int j = first_key_block(s, b, first); j", "int j = first_key_block(s, b, end - 1); j"),
    ("backward: ends too early", ATTENTION, "if (first >= task->key_end) break;", "if (first >= task->key_end - 1 && first > 0) break;"),
    ("backward: begins a block too late", ATTENTION, "task->key > first ? task->key : first;", "task->key > first ? task->key : first + (first < i);"),
    ("backward: positions are the sequence's", EMBEDDING, "    if (positions) {\n", "    if (0) {\n"),
    ("forward: positions are the sequence's", EMBEDDING, "(positions ? positions[first_row + i] :", "(0 ? positions[first_row + i] :"),
    ("forward: positions of another rank", EMBEDDING, "positions ? positions[first_row + i]", "positions ? positions[i]"),
    ("backward: positions of another rank", EMBEDDING, "positions + first_row, N, C, 0, T)", "positions, N, C, 0, T)"),
    ("backward: not all positions", EMBEDDING, "positions + first_row, N, C, 0, T)", "positions + first_row, N, C, 0, T - 1)"),
    ("tokens: text has a token for it", TOKENS, "return format == TOKENS_TEXT || format == TOKENS_MEGATRON ||", "return format == TOKENS_MEGATRON ||"),
    ("tokens: an index is not asked", TOKENS, "return format == TOKENS_TEXT || format == TOKENS_MEGATRON ||", "return format == TOKENS_TEXT ||"),
    ("index: the end is not known", TOKENS, "    if (sequence == index->sequences) return index->tokens;\n", ""),
    ("index: bytes for tokens", TOKENS, "index_int64(index->begins, sequence) / token_type_bytes[index->type]", "index_int64(index->begins, sequence) / 2"),
    ("index: sequences for documents", TOKENS, "const int64_t sequence = index_int64(index->ends, d);", "const int64_t sequence = d;"),
    ("index: the first of all", TOKENS, "if (index_document(index, middle) < at)", "if (0)"),
    ("index: one document of a sequence", TOKENS, "            positions[at] = 0;\n        }", "            positions[at] = 0;\n            break;\n        }"),
    ("index: of the stream", TOKENS, "index_document_from(index, begin - file->first)", "index_document_from(index, begin)"),
    ("index: the file's place is forgotten", TOKENS, "file->first + index_document(index, d) - begin", "index_document(index, d) - begin"),
    ("index: one too far", TOKENS, "if (at >= n) break;", "if (at > n) break;"),
    ("files: only the first", TOKENS, "file < behind && file->first < begin + n; file++", "file < behind && file == tokens_find(files, begin); file++"),
    ("files: no document begins with one", TOKENS, "if (file->first >= begin) positions", "if (file->first > begin + n) positions"),
    ("positions: the first is not one", TOKENS, "    positions[0] = 0;\n", ""),
    ("positions: begin at 1", TOKENS, "positions[i] ? positions[i - 1] + 1 : 0;", "positions[i] ? positions[i - 1] + 1 : 1;"),
    ("positions: the token ends a document", TOKENS, "told || tokens[i] != files->document;", "told || i == 0 || tokens[i - 1] != files->document;"),
    ("seen: only the first piece", TOKENS, "piece < PIECES && piece * PIECE < files->tokens; piece++", "piece < 1; piece++"),
    ("seen: never missed", TOKENS, "    return false;\n}\n\n// For people.", "    return true;\n}\n\n// For people."),
    ("sources: the vocabulary wins", LOADER, "chosen >= 0 ? chosen : of_vocabulary >= 0 ? of_vocabulary :",
     "of_vocabulary >= 0 ? of_vocabulary : chosen >= 0 ? chosen :"),
    ("sources: token 0 is none", LOADER, "chosen >= 0 ? chosen :", "chosen > 0 ? chosen :"),
    ("sources: none is enough", LOADER, "    if (token < 0)\n        return fail(error, \"%s holds %s, which", "    if (0)\n        return fail(error, \"%s holds %s, which"),
    ("sources: a token that is not there", LOADER, "    if (documents_are_seen(files)) return true;\n", "    if (1) return true;\n"),
    ("sources: one has, all have", LOADER, "have = have && format_has_documents", "have = have || format_has_documents"),
    ("positions: of the begin of the stream", LOADER, "inputs, dataloader_begin(loader, n), loader->T);", "inputs, loader->first, loader->T);"),
    ("positions: of one token too few", LOADER, "inputs, dataloader_begin(loader, n), loader->T);", "inputs, dataloader_begin(loader, n), loader->T - 1);"),
]


if __name__ == "__main__":
    sys.exit(mutate.main(FAULTS, {TOKENS: "test_dataloader", LOADER: "test_dataloader", ATTENTION: "test_attention", EMBEDDING: "test_kernels"}))
