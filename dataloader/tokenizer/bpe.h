/*
dataloader/tokenizer/bpe.h: byte-level byte-pair encoding (Sennrich et al. 2016; over bytes: Radford et al. 2019).

    tokenizer_encode    appends the tokens of a text; each thread has an Encoder
    tokenizer_decode    the bytes of a token
    tokenizer_begin, tokenizer_merge, tokenizer_add    build a vocabulary (tokenizer.h)

Theory. A vocabulary begins with the 256 bytes. Each merge joins two adjacent tokens to a longer one, and has a rank:
merges that were learned earlier come first. To encode a word (pretokenize.h), begin with its bytes and, as long as two
neighbours can be merged, merge those of the lowest rank, the leftmost of several.

    "low"    l o w    (l o) has rank 7, (o w) has rank 3    ->    l ow    (l ow) has rank 90    ->    low

A vocabulary's file lists the pairs, and a pair's place in the list is its rank. Here they are a table, from a pair of
tokens to rank and result.

Speed:
    a heap over a linked list   A word of n bytes costs O(n log n), so that even a megabyte without a blank is fast. The
                                rank of a pair is looked up when the pair forms, and stored; an outdated heap entry is
                                recognised by a rank that differs from the stored one.
    a cache of words            Texts repeat their words. A slot is one cache line: a word of up to 24 bytes with up
                                to 8 tokens. Each Encoder has its own, so threads share nothing but the vocabulary.

Added tokens are found before the merges: "<|endoftext|>" is one token wherever it occurs. Special ones are found only
on request: a text from the web must not be able to end a document, so by default its "<|endoftext|>" is ordinary text.
Any bytes can be encoded, and decoding returns the same bytes. A decoded token need not be UTF-8 by itself.
*/
#pragma once

#include "pretokenize.h"

enum {
    VOCAB_MOST = 1 << 22, // tokens; a file with more is damaged
    WORD_MOST = 1 << 28,  // bytes of a word
    CACHE_BITS = 16,      // log2 of the words that an Encoder caches: 4 MB
    CACHED_BYTES = 24,    // bytes of such a word
    CACHED_TOKENS = 8,
    NO_RANK = 0x7FFFFFFF // for two tokens that cannot be merged
};

typedef struct {
    uint64_t pair; // left << 32 | right; NO_PAIR: the slot is free
    uint32_t rank, token;
} Merge;

static const uint64_t NO_PAIR = ~0ull;

// A token that is found in the text verbatim.
typedef struct {
    uint32_t token;
    bool special;
} AddedToken;

typedef struct {
    SplitKind split;
    int vocab;            // tokens are 0 .. vocab - 1; some may have no bytes
    unsigned char* bytes; // all tokens', one after the other
    uint32_t* begin;      // (vocab + 1): token i is bytes [begin[i], begin[i + 1])
    uint32_t byte_token[256];
    Merge* merges; // (merge_mask + 1): a hash table
    uint64_t merge_mask;
    int merge_count;
    uint32_t* token_of; // (token_mask + 1): a hash table of tokens by their bytes; vocab: the slot is free
    uint64_t token_mask;
    bool whole_words; // a word that is a token is not split by the merges
    AddedToken* added;
    int added_count;
    bool* is_added;         // (vocab)
    bool begins_added[256]; // an added token has this first byte
    int document;           // the token that stands before each document; -1: there is none
} Tokenizer;

static inline void tokenizer_free(Tokenizer* tokenizer) {
    free(tokenizer->bytes);
    free(tokenizer->begin);
    free(tokenizer->merges);
    free(tokenizer->token_of);
    free(tokenizer->added);
    free(tokenizer->is_added);
    memset(tokenizer, 0, sizeof *tokenizer);
}

// ---- Decoding ---------------------------------------------------------------------------------------------------

static inline uint32_t token_bytes(const Tokenizer* tokenizer, uint32_t token) {
    return tokenizer->begin[token + 1] - tokenizer->begin[token];
}

// The *n bytes of a token; none if the vocabulary does not have it.
static inline const unsigned char* tokenizer_decode(const Tokenizer* tokenizer, int64_t token, size_t* n) {
    const bool known = token >= 0 && token < tokenizer->vocab;
    *n = known ? token_bytes(tokenizer, (uint32_t)token) : 0;
    return known ? tokenizer->bytes + tokenizer->begin[token] : tokenizer->bytes;
}

// The bytes of a token as a string, to be freed.
static inline char* token_name(const Tokenizer* tokenizer, uint32_t token) {
    return checked_strndup((const char*)tokenizer->bytes + tokenizer->begin[token], token_bytes(tokenizer, token),
                           "the name of a token");
}

// ---- Building: tokenizer_begin with the tokens' bytes, then the merges, then the added tokens. ------------------

static inline uint64_t hash_pair(uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15ull;
    return (pair ^ pair >> 32) * 0xD6E8FEB86659FD93ull >> 20;
}

static inline uint64_t hash_word(const unsigned char* text, size_t n) {
    const uint64_t h = hash_bytes(text, n);
    return h ^ h >> 29;
}

static inline uint64_t table_mask(uint64_t entries) {
    uint64_t slots = 16;
    while (slots < 2 * entries) slots *= 2;
    return slots - 1;
}

// The slot of the token with these bytes, or the free slot for it.
static inline uint64_t token_slot(const Tokenizer* tokenizer, const unsigned char* text, size_t n) {
    uint64_t slot = hash_word(text, n) & tokenizer->token_mask;
    for (; tokenizer->token_of[slot] != (uint32_t)tokenizer->vocab; slot = (slot + 1) & tokenizer->token_mask) {
        const uint32_t token = tokenizer->token_of[slot];
        if (token_bytes(tokenizer, token) == n && memcmp(tokenizer->bytes + tokenizer->begin[token], text, n) == 0)
            break;
    }
    return slot;
}

// The token with these bytes, or -1.
static inline int64_t tokenizer_find(const Tokenizer* tokenizer, const unsigned char* text, size_t n) {
    const uint32_t token = n > 0 ? tokenizer->token_of[token_slot(tokenizer, text, n)] : (uint32_t)tokenizer->vocab;
    return token == (uint32_t)tokenizer->vocab ? -1 : (int64_t)token;
}

// The slot of a pair, or the free slot for it.
static inline Merge* merge_slot(const Tokenizer* tokenizer, uint32_t left, uint32_t right) {
    const uint64_t pair = (uint64_t)left << 32 | right;
    uint64_t slot = hash_pair(pair) & tokenizer->merge_mask;
    while (tokenizer->merges[slot].pair != pair && tokenizer->merges[slot].pair != NO_PAIR)
        slot = (slot + 1) & tokenizer->merge_mask;
    return &tokenizer->merges[slot];
}

// A token of a vocabulary being read.
typedef struct {
    const unsigned char* bytes; // NULL: no token has this number
    size_t n;
    bool apart;          // an added token that the merges do not make; it is not found by its bytes
    bool added, special; // as in AddedToken
} TokenText;

static inline bool find_bytes(Tokenizer* tokenizer, const char* path, Error* error) {
    for (int b = 0; b < 256; b++) {
        const unsigned char byte = (unsigned char)b;
        const int64_t token = tokenizer_find(tokenizer, &byte, 1);
        if (token < 0)
            return fail(error,
                        "%s: no token stands for the byte 0x%02x alone; a byte-level vocabulary has all 256 bytes",
                        path, b);
        tokenizer->byte_token[b] = (uint32_t)token;
    }
    return true;
}

// Makes a vocabulary of these tokens without merges; those that are not apart differ. False, *error filled and nothing
// to free, if a byte has no token.
static inline bool tokenizer_begin(Tokenizer* tokenizer, const TokenText* text, int vocab, SplitKind split,
                                   const char* path, Error* error) {
    memset(tokenizer, 0, sizeof *tokenizer);
    uint64_t total = 0;
    for (int i = 0; i < vocab; i++) total += text[i].n;
    tokenizer->split = split;
    tokenizer->vocab = vocab;
    tokenizer->document = -1;
    tokenizer->bytes = (unsigned char*)checked_malloc(total + 1, "a vocabulary");
    tokenizer->begin = (uint32_t*)checked_malloc(((size_t)vocab + 1) * sizeof *tokenizer->begin, "a vocabulary");
    tokenizer->is_added = (bool*)checked_calloc((size_t)vocab, sizeof *tokenizer->is_added, "a vocabulary");
    tokenizer->token_mask = table_mask((uint64_t)vocab);
    tokenizer->token_of =
        (uint32_t*)checked_malloc((tokenizer->token_mask + 1) * sizeof *tokenizer->token_of, "a vocabulary");
    for (uint64_t i = 0; i <= tokenizer->token_mask; i++) tokenizer->token_of[i] = (uint32_t)vocab;
    tokenizer->merge_mask = 0;
    tokenizer->merges = (Merge*)checked_malloc(sizeof *tokenizer->merges, "a vocabulary");
    tokenizer->merges[0].pair = NO_PAIR;
    tokenizer->begin[0] = 0;
    for (int i = 0; i < vocab; i++) {
        if (text[i].n) memcpy(tokenizer->bytes + tokenizer->begin[i], text[i].bytes, text[i].n);
        tokenizer->begin[i + 1] = tokenizer->begin[i] + (uint32_t)text[i].n;
        if (text[i].n == 0 || text[i].apart) continue;
        tokenizer->token_of[token_slot(tokenizer, text[i].bytes, text[i].n)] = (uint32_t)i;
    }
    const bool ok = find_bytes(tokenizer, path, error);
    if (!ok) tokenizer_free(tokenizer);
    return ok;
}

// Allocates the table for a number of merges.
static inline void tokenizer_reserve(Tokenizer* tokenizer, int64_t merges) {
    free(tokenizer->merges);
    tokenizer->merge_mask = table_mask((uint64_t)merges);
    tokenizer->merges =
        (Merge*)checked_malloc((tokenizer->merge_mask + 1) * sizeof *tokenizer->merges, "a vocabulary's merges");
    for (uint64_t i = 0; i <= tokenizer->merge_mask; i++) tokenizer->merges[i].pair = NO_PAIR;
}

// Adds a merge of left and right to `token`. A pair that is added twice has the last rank, as in Hugging Face's
// library.
static inline void tokenizer_merge(Tokenizer* tokenizer, uint32_t left, uint32_t right, uint32_t rank, uint32_t token) {
    Merge* merge = merge_slot(tokenizer, left, right);
    if (merge->pair == NO_PAIR) tokenizer->merge_count++;
    merge->pair = (uint64_t)left << 32 | right;
    merge->rank = rank;
    merge->token = token;
}

// Makes a token, which has bytes, an added token: it is found verbatim.
static inline void tokenizer_add(Tokenizer* tokenizer, uint32_t token, bool special) {
    tokenizer->added = (AddedToken*)checked_realloc(tokenizer->added, (size_t)tokenizer->added_count + 1,
                                                    sizeof(AddedToken), "the added tokens of a vocabulary");
    const AddedToken added = {token, special};
    tokenizer->added[tokenizer->added_count++] = added;
    tokenizer->is_added[token] = true;
    tokenizer->begins_added[tokenizer->bytes[tokenizer->begin[token]]] = true;
}

// The added token of this name, or -1.
static inline int tokenizer_added(const Tokenizer* tokenizer, const char* name) {
    const size_t n = strlen(name);
    for (int i = 0; i < tokenizer->added_count; i++) {
        const uint32_t token = tokenizer->added[i].token;
        if (token_bytes(tokenizer, token) == n && memcmp(tokenizer->bytes + tokenizer->begin[token], name, n) == 0)
            return (int)token;
    }
    return -1;
}

// The token that separates documents, or -1: GPT-2's, which ends a text, or Llama 3's, which begins one. Here both
// precede a document, as in llm.c's files.
static inline int tokenizer_document(const Tokenizer* tokenizer) {
    static const char* const names[] = {"<|endoftext|>", "<|begin_of_text|>"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (tokenizer_added(tokenizer, names[i]) >= 0) return tokenizer_added(tokenizer, names[i]);
    return -1;
}

// Whether a token ends a text, or a turn of a conversation.
static inline bool tokenizer_ends(const Tokenizer* tokenizer, int64_t token) {
    static const char* const names[] = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "</s>"};
    if (token < 0) return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (tokenizer_added(tokenizer, names[i]) == token) return true;
    return false;
}

// Makes the vocabulary of the 256 bytes.
static inline void tokenizer_bytes(Tokenizer* tokenizer) {
    unsigned char all[256];
    TokenText text[256];
    Error error;
    for (int b = 0; b < 256; b++) {
        all[b] = (unsigned char)b;
        text[b].bytes = &all[b];
        text[b].n = 1;
        text[b].apart = false;
    }
    if (!tokenizer_begin(tokenizer, text, 256, SPLIT_BYTES, "bytes", &error)) die("internal error: %s", error.text);
}

// Whether a vocabulary is the 256 bytes, even if it was read from a file.
static inline bool tokenizer_is_bytes(const Tokenizer* tokenizer) {
    bool is = tokenizer->vocab == 256 && tokenizer->merge_count == 0 && tokenizer->added_count == 0;
    for (uint32_t b = 0; b < 256 && is; b++) is = tokenizer->byte_token[b] == b;
    return is;
}

// The size and a hash of a vocabulary, as text.
typedef struct {
    char text[64];
} VocabChecksum;

static inline VocabChecksum tokenizer_checksum(const Tokenizer* tokenizer) {
    VocabChecksum checksum;
    const size_t n = tokenizer->vocab > 0 ? tokenizer->begin[tokenizer->vocab] : 0;
    const uint64_t slots = tokenizer->vocab > 0 ? tokenizer->merge_mask + 1 : 0;
    uint64_t merges = 0; // a sum, as it does not depend on their order
    for (uint64_t i = 0; i < slots; i++)
        if (tokenizer->merges[i].pair != NO_PAIR)
            merges += hash_pair(tokenizer->merges[i].pair + tokenizer->merges[i].rank);
    snprintf(checksum.text, sizeof checksum.text, "%d tokens, checksum %016llx", tokenizer->vocab,
             (unsigned long long)(hash_word(tokenizer->bytes, n) ^ merges * 3 ^ (uint64_t)tokenizer->split));
    return checksum;
}

// ---- Tokens of one word -----------------------------------------------------------------------------------------

// A token of a word, its neighbours, and its merge with the right one.
typedef struct {
    uint32_t token, previous, next;
    uint32_t rank, merged;
} Symbol;

// A word that was encoded before; one cache line.
typedef struct {
    uint64_t text[CACHED_BYTES / 8]; // zeros after the word
    uint16_t bytes, count;           // bytes 0: the slot is free
    uint32_t token[CACHED_TOKENS + 1];
} CachedWord;

// A thread's buffers and cache for encoding with one vocabulary; they do not change the result.
typedef struct {
    CachedWord* cache;
    Symbol* symbol; // the current word's
    uint64_t* heap; // rank << 32 | symbol
    size_t room;    // symbols; the heap has three times as many
} Encoder;

// A growing list of tokens.
typedef struct {
    int32_t* token;
    size_t count;
    int64_t room;
} TokenList;

static inline void encoder_open(Encoder* encoder) {
    memset(encoder, 0, sizeof *encoder);
    encoder->cache =
        (CachedWord*)checked_calloc((size_t)1 << CACHE_BITS, sizeof *encoder->cache, "the words of an encoder");
}

static inline void encoder_close(Encoder* encoder) {
    free(encoder->cache);
    free(encoder->symbol);
    free(encoder->heap);
    memset(encoder, 0, sizeof *encoder);
}

static inline void token_list_free(TokenList* list) {
    free(list->token);
    memset(list, 0, sizeof *list);
}

static inline void token_list_reserve(TokenList* list, size_t more) {
    list->token =
        (int32_t*)checked_reserve(list->token, &list->room, (int64_t)(list->count + more), sizeof(int32_t), "tokens");
}

static inline void encoder_reserve(Encoder* encoder, size_t symbols) {
    if (symbols <= encoder->room) return;
    if (symbols > WORD_MOST)
        die("a word of %zu bytes without a blank: not a text; the longest that can be encoded has %d", symbols,
            WORD_MOST);
    free(encoder->symbol);
    free(encoder->heap);
    encoder->room = symbols + symbols / 2 + 64;
    encoder->symbol = (Symbol*)checked_malloc(encoder->room * sizeof *encoder->symbol, "the symbols of a word");
    encoder->heap = (uint64_t*)checked_malloc(3 * encoder->room * sizeof *encoder->heap, "the merges of a word");
}

static inline void heap_push(uint64_t* heap, size_t* count, uint64_t entry) {
    size_t i = (*count)++;
    for (; i > 0 && heap[(i - 1) / 2] > entry; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = entry;
}

static inline uint64_t heap_pop(uint64_t* heap, size_t* count) {
    const uint64_t top = heap[0], last = heap[--*count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *count; i = child) {
        if (child + 1 < *count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

// Looks up the merge of symbol i with its new right neighbour; n: there is none.
static inline void symbol_meets(const Tokenizer* tokenizer, Encoder* encoder, size_t* heap_count, uint32_t i,
                                uint32_t n) {
    Symbol* symbol = &encoder->symbol[i];
    symbol->rank = NO_RANK;
    if (symbol->next == n) return;
    const Merge* merge = merge_slot(tokenizer, symbol->token, encoder->symbol[symbol->next].token);
    if (merge->pair == NO_PAIR) return;
    symbol->rank = merge->rank;
    symbol->merged = merge->token;
    heap_push(encoder->heap, heap_count, (uint64_t)merge->rank << 32 | i);
}

// Merges symbol i with its right neighbour.
static inline void symbol_merge(const Tokenizer* tokenizer, Encoder* encoder, size_t* heap_count, uint32_t i,
                                uint32_t n) {
    Symbol* symbol = &encoder->symbol[i];
    Symbol* right = &encoder->symbol[symbol->next];
    symbol->token = symbol->merged;
    symbol->next = right->next;
    right->rank = NO_RANK;
    if (symbol->next != n) encoder->symbol[symbol->next].previous = i;
    symbol_meets(tokenizer, encoder, heap_count, i, n);
    if (symbol->previous != n) symbol_meets(tokenizer, encoder, heap_count, symbol->previous, n);
}

// Merges the bytes of a word; the result is the list from symbol 0 on. Every merge pushes at most two entries, so a
// heap of 3 n suffices.
static inline void merge_word(const Tokenizer* tokenizer, Encoder* encoder, const unsigned char* text, uint32_t n) {
    encoder_reserve(encoder, n);
    size_t heap_count = 0;
    for (uint32_t i = 0; i < n; i++) {
        const Symbol symbol = {tokenizer->byte_token[text[i]], i > 0 ? i - 1 : n, i + 1, NO_RANK, 0};
        encoder->symbol[i] = symbol;
    }
    for (uint32_t i = 0; i + 1 < n; i++) symbol_meets(tokenizer, encoder, &heap_count, i, n);
    while (heap_count > 0) {
        const uint64_t best = heap_pop(encoder->heap, &heap_count);
        const uint32_t i = (uint32_t)best;
        if (encoder->symbol[i].rank == best >> 32) symbol_merge(tokenizer, encoder, &heap_count, i, n);
    }
}

// Appends the tokens of a word, n > 0.
static inline void encode_word(const Tokenizer* tokenizer, Encoder* encoder, TokenList* out, const unsigned char* text,
                               size_t n) {
    token_list_reserve(out, n);
    const int64_t whole = tokenizer->whole_words ? tokenizer_find(tokenizer, text, n) : -1;
    if (whole >= 0) {
        out->token[out->count++] = (int32_t)whole;
        return;
    }
    if (n > WORD_MOST) encoder_reserve(encoder, n); // which fails with a message
    merge_word(tokenizer, encoder, text, (uint32_t)n);
    for (uint32_t i = 0; i < (uint32_t)n; i = encoder->symbol[i].next)
        out->token[out->count++] = (int32_t)encoder->symbol[i].token;
}

// The first n <= 8 bytes as a number; `readable` bytes may be read.
static inline uint64_t word_of(const unsigned char* text, size_t n, size_t readable) {
    uint64_t word = 0;
    if (n == 0) return 0;
    memcpy(&word, text, readable >= 8 ? 8 : n);
    return word & (~0ull >> (64 - 8 * n));
}

// The same for a word of the text, through the cache; `readable` >= n bytes may be read.
static inline void encode_cached(const Tokenizer* tokenizer, Encoder* encoder, TokenList* out,
                                 const unsigned char* text, size_t n, size_t readable) {
    if (n > CACHED_BYTES) {
        encode_word(tokenizer, encoder, out, text, n);
        return;
    }
    const size_t second = n < 16 ? n - 8 : 8;
    const uint64_t a = word_of(text, n < 8 ? n : 8, readable), b = n > 8 ? word_of(text + 8, second, readable - 8) : 0;
    const uint64_t c = n > 16 ? word_of(text + 16, n - 16, readable - 16) : 0;
    uint64_t h = (a + n) * 0x9E3779B97F4A7C15ull;
    h = ((h ^ h >> 32) + b) * 0xD6E8FEB86659FD93ull;
    h = ((h ^ h >> 32) + c) * 0x9E3779B97F4A7C15ull;
    CachedWord* word = &encoder->cache[h >> (64 - CACHE_BITS)];
    token_list_reserve(out, CACHED_BYTES);
    if (word->bytes != n || word->text[0] != a || word->text[1] != b || word->text[2] != c) {
        const size_t before = out->count;
        encode_word(tokenizer, encoder, out, text, n);
        const size_t count = out->count - before;
        if (count > CACHED_TOKENS) return;
        word->text[0] = a;
        word->text[1] = b;
        word->text[2] = c;
        word->bytes = (uint16_t)n;
        word->count = (uint16_t)count;
        memcpy(word->token, out->token + before, count * sizeof *word->token);
        return;
    }
    memcpy(out->token + out->count, word->token,
           CACHED_TOKENS * sizeof *word->token); // one copy of constant size; the entries after `count` are unused
    out->count += word->count;
}

// ---- Tokens of a text -------------------------------------------------------------------------------------------

// Encodes text without added tokens.
static inline void encode_plain(const Tokenizer* tokenizer, Encoder* encoder, TokenList* out, const unsigned char* text,
                                size_t n) {
    for (size_t at = 0, end; at < n; at = end) {
        end = split_word(tokenizer->split, text, n, at);
        encode_cached(tokenizer, encoder, out, text + at, end - at, n - at);
    }
}

// The longest added token to be found that begins at text[0], or NULL.
static inline const AddedToken* added_at(const Tokenizer* tokenizer, const unsigned char* text, size_t n,
                                         bool special) {
    const AddedToken* found = NULL;
    if (!tokenizer->begins_added[text[0]]) return NULL;
    for (int i = 0; i < tokenizer->added_count; i++) {
        const AddedToken* added = &tokenizer->added[i];
        const uint32_t bytes = token_bytes(tokenizer, added->token);
        if ((added->special && !special) || bytes > n) continue;
        if (found && token_bytes(tokenizer, found->token) >= bytes) continue;
        if (memcmp(tokenizer->bytes + tokenizer->begin[added->token], text, bytes) == 0) found = added;
    }
    return found;
}

// Appends the tokens of a text of n bytes to *out. special: special tokens are found, too; otherwise they are text.
static inline void tokenizer_encode(const Tokenizer* tokenizer, Encoder* encoder, TokenList* out,
                                    const unsigned char* text, size_t n, bool special) {
    for (size_t begin = 0, at = 0;;) {
        const AddedToken* found = NULL;
        while (at < n && !(found = added_at(tokenizer, text + at, n - at, special))) at++;
        encode_plain(tokenizer, encoder, out, text + begin, at - begin);
        if (!found) return;
        token_list_reserve(out, 1);
        out->token[out->count++] = (int32_t)found->token;
        begin = at += token_bytes(tokenizer, found->token);
    }
}
