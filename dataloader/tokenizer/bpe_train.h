/*
dataloader/tokenizer/bpe_train.h: trains a vocabulary on a text (Sennrich et al. 2016, algorithm 1).

    word_counts_text    counts the words of a text; word_counts_join: adds another thread's counts
    tokenizer_learn     makes the vocabulary

Theory. Begin with the 256 bytes. Count how often any two tokens are adjacent within a word, make the commonest pair a
new token, and repeat until the vocabulary is large enough. Of equally common pairs the one with the smaller numbers
comes first (the left token's, then the right one's), so that a text always gives the same vocabulary, on any machine
and with any number of threads. Bytes are numbered as in GPT-2, in the order of their characters in files, and Hugging
Face's trainer breaks ties in the same way: it learns the same merges from the same text, as the tests check. Each
distinct word is kept once, with its number of occurrences (WordCounts).

Speed: nothing is counted twice.
    counts      A merge changes only the counts of pairs beside it: x l r y becomes x m y, so for each place the counts
                of (x l) and (r y) fall by one, and those of (x m) and (m y) rise by one.
    places      Each pair has a list of the places where it formed; places that a later merge has changed are recognised
                by their tokens. The total work is proportional to the number of places that ever formed.
    heap        of (count, pair). A count that has since fallen is corrected when its entry reaches the top.
*/
#pragma once

#include "vocab_files.h"

// ---- Words and their counts -------------------------------------------------------------------------------------

typedef struct {
    size_t begin; // in WordCounts.bytes
    uint32_t n;
    int64_t count;
} CountedWord;

typedef struct {
    unsigned char* bytes;
    size_t used;
    int64_t room;
    CountedWord* word;
    int words, words_room;
    int32_t* slot; // (mask + 1): a hash table of words; -1: free
    uint64_t mask;
} WordCounts;

// Makes a hash table without words.
static inline void word_counts_slots(WordCounts* counts, uint64_t mask) {
    counts->mask = mask;
    counts->slot = (int32_t*)checked_malloc((mask + 1) * sizeof *counts->slot, "the words of a text");
    memset(counts->slot, 0xFF, (mask + 1) * sizeof *counts->slot);
}

static inline void word_counts_open(WordCounts* counts) {
    memset(counts, 0, sizeof *counts);
    word_counts_slots(counts, 1023);
}

static inline void word_counts_free(WordCounts* counts) {
    free(counts->bytes);
    free(counts->word);
    free(counts->slot);
    memset(counts, 0, sizeof *counts);
}

static inline uint64_t word_slot(const WordCounts* counts, const unsigned char* text, size_t n) {
    uint64_t i = hash_word(text, n) & counts->mask;
    for (; counts->slot[i] >= 0; i = (i + 1) & counts->mask) {
        const CountedWord* word = &counts->word[counts->slot[i]];
        if (word->n == n && memcmp(counts->bytes + word->begin, text, n) == 0) break;
    }
    return i;
}

static inline void word_counts_widen(WordCounts* counts) {
    free(counts->slot);
    word_counts_slots(counts, 4 * counts->mask + 3);
    for (int i = 0; i < counts->words; i++)
        counts->slot[word_slot(counts, counts->bytes + counts->word[i].begin, counts->word[i].n)] = i;
}

// Counts a word `count` times, 0 < n <= WORD_MOST.
static inline void word_counts_add(WordCounts* counts, const unsigned char* text, size_t n, int64_t count) {
    if ((uint64_t)counts->words * 2 > counts->mask) word_counts_widen(counts);
    const uint64_t slot = word_slot(counts, text, n);
    if (counts->slot[slot] >= 0) {
        counts->word[counts->slot[slot]].count += count;
        return;
    }
    if (counts->words == counts->words_room)
        counts->word = (CountedWord*)checked_grow(counts->word, &counts->words_room, 1024, sizeof *counts->word,
                                                  "the words of a text");
    counts->bytes = (unsigned char*)checked_reserve(counts->bytes, &counts->room, (int64_t)(counts->used + n), 1,
                                                    "the words of a text");
    memcpy(counts->bytes + counts->used, text, n);
    const CountedWord word = {counts->used, (uint32_t)n, count};
    counts->slot[slot] = counts->words;
    counts->word[counts->words++] = word;
    counts->used += n;
}

// Counts the words of a text.
static inline void word_counts_text(WordCounts* counts, SplitKind split, const unsigned char* text, size_t n) {
    for (size_t at = 0, end; at < n; at = end) {
        end = split_word(split, text, n, at);
        if (end - at > WORD_MOST)
            die("a word of %zu bytes without a blank: not a text; the longest that can be learned from has %d",
                end - at, WORD_MOST);
        word_counts_add(counts, text + at, end - at, 1);
    }
}

// Adds the counts of another thread.
static inline void word_counts_join(WordCounts* counts, const WordCounts* other) {
    for (int i = 0; i < other->words; i++)
        word_counts_add(counts, other->bytes + other->word[i].begin, other->word[i].n, other->word[i].count);
}

// ---- Pairs: a hash table of counts and places, and a heap -------------------------------------------------------

typedef struct {
    uint64_t pair;         // left << 32 | right; NO_PAIR: the slot is free
    int64_t count, queued; // queued: the count in its newest heap entry
    uint32_t* place;       // symbols at which the pair formed
    int places, room;
} PairCount;

typedef struct {
    PairCount* slot; // (mask + 1)
    uint64_t mask, used;
} PairCounts;

typedef struct {
    int64_t count;
    uint64_t pair;
} CommonPair;

typedef struct {
    CommonPair* entry;
    int count, room;
} CommonPairs;

static inline void pair_counts_open(PairCounts* pairs, uint64_t mask) {
    pairs->mask = mask;
    pairs->used = 0;
    pairs->slot = (PairCount*)checked_calloc(mask + 1, sizeof *pairs->slot, "the pairs of a text");
    for (uint64_t i = 0; i <= mask; i++) pairs->slot[i].pair = NO_PAIR;
}

static inline void pair_counts_free(PairCounts* pairs) {
    for (uint64_t i = 0; i <= pairs->mask; i++) free(pairs->slot[i].place);
    free(pairs->slot);
}

static inline PairCount* pair_slot(const PairCounts* pairs, uint64_t pair) {
    uint64_t i = hash_pair(pair) & pairs->mask;
    while (pairs->slot[i].pair != pair && pairs->slot[i].pair != NO_PAIR) i = (i + 1) & pairs->mask;
    return &pairs->slot[i];
}

// The counts of a pair, inserted if new. Pointers to other counts may become invalid.
static inline PairCount* pair_count(PairCounts* pairs, uint64_t pair) {
    if (2 * pairs->used > pairs->mask) {
        const PairCounts before = *pairs;
        pair_counts_open(pairs, 2 * before.mask + 1);
        for (uint64_t i = 0; i <= before.mask; i++)
            if (before.slot[i].pair != NO_PAIR) *pair_slot(pairs, before.slot[i].pair) = before.slot[i];
        pairs->used = before.used;
        free(before.slot);
    }
    PairCount* entry = pair_slot(pairs, pair);
    if (entry->pair == NO_PAIR) {
        entry->pair = pair;
        pairs->used++;
    }
    return entry;
}

// Whether a comes before b: it is more common, or its numbers are smaller.
static inline bool is_commoner(const CommonPair* a, const CommonPair* b) {
    return a->count != b->count ? a->count > b->count : a->pair < b->pair;
}

static inline void common_push(CommonPairs* heap, uint64_t pair, int64_t count) {
    if (heap->count == heap->room)
        heap->entry =
            (CommonPair*)checked_grow(heap->entry, &heap->room, 1024, sizeof *heap->entry, "the pairs of a text");
    const CommonPair entry = {count, pair};
    int i = heap->count++;
    for (; i > 0 && is_commoner(&entry, &heap->entry[(i - 1) / 2]); i = (i - 1) / 2)
        heap->entry[i] = heap->entry[(i - 1) / 2];
    heap->entry[i] = entry;
}

static inline CommonPair common_pop(CommonPairs* heap) {
    const CommonPair top = heap->entry[0], last = heap->entry[--heap->count];
    int i = 0;
    for (int child; (child = 2 * i + 1) < heap->count; i = child) {
        if (child + 1 < heap->count && is_commoner(&heap->entry[child + 1], &heap->entry[child])) child++;
        if (!is_commoner(&heap->entry[child], &last)) break;
        heap->entry[i] = heap->entry[child];
    }
    heap->entry[i] = last;
    return top;
}

// ---- Learning ---------------------------------------------------------------------------------------------------

// A byte of a word, or a token of several bytes. Words follow each other, each after a symbol without token; one more
// such symbol is at the end.
typedef struct {
    uint32_t token, previous, next; // token NO_TOKEN_HERE: the edge of a word, or merged with the symbol before
    uint32_t word;
} LearnSymbol;

static const uint32_t NO_TOKEN_HERE = 0xFFFFFFFFu;

typedef struct {
    const WordCounts* words;
    LearnSymbol* symbol;
    PairCounts pairs;
    CommonPairs common;
    WordCounts tokens; // the vocabulary so far: token i is its "word" number i
    Merge* merge;      // in the order in which they were learned
    int merges, room;
} Learning;

static inline uint64_t pair_at(const Learning* learning, uint32_t i) {
    return (uint64_t)learning->symbol[i].token << 32 | learning->symbol[learning->symbol[i].next].token;
}

static inline bool is_pair(const Learning* learning, uint32_t i) {
    return learning->symbol[i].token != NO_TOKEN_HERE &&
           learning->symbol[learning->symbol[i].next].token != NO_TOKEN_HERE;
}

// Counts the pair at symbol i once more (times = 1) or less (-1).
static inline void count_pair(Learning* learning, uint32_t i, int times) {
    if (!is_pair(learning, i)) return;
    PairCount* entry = pair_count(&learning->pairs, pair_at(learning, i));
    entry->count += times * learning->words->word[learning->symbol[i].word].count;
    if (times < 0) return;
    if (entry->places == entry->room)
        entry->place =
            (uint32_t*)checked_grow(entry->place, &entry->room, 4, sizeof *entry->place, "the places of a pair");
    entry->place[entry->places++] = i;
}

// Pushes a pair to the heap, if its count is not there already.
static inline void offer_pair(Learning* learning, PairCount* entry) {
    if (entry->count == entry->queued || entry->count == 0) return;
    entry->queued = entry->count;
    common_push(&learning->common, entry->pair, entry->count);
}

// Makes symbols of the words and counts their pairs.
static inline void learn_begin(Learning* learning, const WordCounts* words, const uint32_t byte_token[256]) {
    const uint64_t symbols = words->used + (uint64_t)words->words + 1;
    if (symbols >= NO_TOKEN_HERE)
        die("%.1f GB of different words are too many to learn from: take a part of the text",
            (double)words->used / 1e9);
    learning->words = words;
    learning->symbol = (LearnSymbol*)checked_malloc(symbols * sizeof *learning->symbol, "the words of a text");
    uint32_t n = 0;
    for (int w = 0; w <= words->words; w++) {
        const uint32_t bytes = w < words->words ? words->word[w].n : 0;
        for (uint32_t k = 0; k < bytes + 1; k++, n++) {
            const uint32_t token = k == 0 ? NO_TOKEN_HERE : byte_token[words->bytes[words->word[w].begin + k - 1]];
            const LearnSymbol symbol = {token, n - 1, n + 1, (uint32_t)w};
            learning->symbol[n] = symbol;
        }
    }
    pair_counts_open(&learning->pairs, 65535);
    for (uint32_t i = 0; i + 1 < n; i++) count_pair(learning, i, 1);
    for (uint64_t i = 0; i <= learning->pairs.mask; i++)
        if (learning->pairs.slot[i].pair != NO_PAIR) offer_pair(learning, &learning->pairs.slot[i]);
}

// The commonest pair with a count of at least `least`; false: there is none.
static inline bool learn_pair(Learning* learning, uint64_t* pair, int64_t least) {
    while (learning->common.count > 0) {
        const CommonPair top = common_pop(&learning->common);
        PairCount* entry = pair_slot(&learning->pairs, top.pair);
        *pair = top.pair;
        if (entry->count == top.count && top.count >= least) return true;
        if (entry->count != top.count) offer_pair(learning, entry);
    }
    return false;
}

static inline int compare_places(const void* a, const void* b) {
    const uint32_t x = *(const uint32_t*)a, y = *(const uint32_t*)b;
    return x < y ? -1 : x > y;
}

// Symbol i and the one to its right become `token`.
static inline void learn_merge_at(Learning* learning, uint32_t i, uint32_t token) {
    LearnSymbol *symbol = &learning->symbol[i], *right = &learning->symbol[symbol->next];
    count_pair(learning, symbol->previous, -1);
    count_pair(learning, i, -1);
    count_pair(learning, symbol->next, -1);
    right->token = NO_TOKEN_HERE;
    symbol->token = token;
    symbol->next = right->next;
    learning->symbol[symbol->next].previous = i;
    count_pair(learning, symbol->previous, 1);
    count_pair(learning, i, 1);
}

// Merges a pair everywhere, in the order of the text, which matters for "aaa", and pushes the new pairs to the heap.
static inline void learn_merge(Learning* learning, uint64_t pair, uint32_t token) {
    PairCount* entry = pair_slot(&learning->pairs, pair);
    uint32_t* place = entry->place;
    const int places = entry->places;
    entry->place = NULL;
    entry->places = entry->room = 0;
    qsort(place, (size_t)places, sizeof *place, compare_places);
    int merged = 0;
    for (int k = 0; k < places; k++) {
        const uint32_t i = place[k];
        if (!is_pair(learning, i) || pair_at(learning, i) != pair) continue;
        learn_merge_at(learning, i, token);
        place[merged++] = i;
    }
    for (int k = 0; k < merged; k++) {
        const uint32_t around[2] = {learning->symbol[place[k]].previous, place[k]};
        for (int j = 0; j < 2; j++) {
            if (learning->symbol[place[k]].token == token && is_pair(learning, around[j]))
                offer_pair(learning, pair_slot(&learning->pairs, pair_at(learning, around[j])));
        }
    }
    free(place);
}

// The token of a merged pair: a new one, unless another pair has the same bytes.
static inline uint32_t learn_token(Learning* learning, uint64_t pair) {
    WordCounts* tokens = &learning->tokens;
    const CountedWord left = tokens->word[pair >> 32], right = tokens->word[(uint32_t)pair];
    unsigned char* both = (unsigned char*)checked_malloc((size_t)left.n + right.n, "a token");
    memcpy(both, tokens->bytes + left.begin, left.n);
    memcpy(both + left.n, tokens->bytes + right.begin, right.n);
    word_counts_add(tokens, both, (size_t)left.n + right.n, 1);
    const uint32_t token = (uint32_t)tokens->slot[word_slot(tokens, both, (size_t)left.n + right.n)];
    free(both);
    return token;
}

// Learns merges up to a number of tokens, or until no pair has a count of `least`.
static inline void learn_merges(Learning* learning, int tokens, int64_t least) {
    uint64_t pair;
    while (learning->tokens.words < tokens && learn_pair(learning, &pair, least)) {
        const Merge merge = {pair, (uint32_t)learning->merges, learn_token(learning, pair)};
        if (learning->merges == learning->room)
            learning->merge =
                (Merge*)checked_grow(learning->merge, &learning->room, 1024, sizeof *learning->merge, "merges");
        learning->merge[learning->merges++] = merge;
        learn_merge(learning, pair, merge.token);
    }
}

// Makes the vocabulary from the learned merges, with a special token at its end.
static inline void learn_finish(Tokenizer* tokenizer, const Learning* learning, SplitKind split, const char* special) {
    Error error;
    const WordCounts* tokens = &learning->tokens;
    TokenText* text = (TokenText*)checked_calloc((size_t)tokens->words + 1, sizeof *text, "a vocabulary");
    for (int i = 0; i < tokens->words; i++) {
        text[i].bytes = tokens->bytes + tokens->word[i].begin;
        text[i].n = tokens->word[i].n;
    }
    TokenText* last = &text[tokens->words];
    last->bytes = (const unsigned char*)special;
    last->n = strlen(special);
    last->apart = true;
    if (!tokenizer_begin(tokenizer, text, tokens->words + 1, split, "what was learned", &error))
        die("internal error: %s", error.text);
    tokenizer_reserve(tokenizer, learning->merges);
    for (int i = 0; i < learning->merges; i++)
        tokenizer_merge(tokenizer, (uint32_t)(learning->merge[i].pair >> 32), (uint32_t)learning->merge[i].pair,
                        learning->merge[i].rank, learning->merge[i].token);
    tokenizer_add(tokenizer, (uint32_t)tokens->words, true, false);
    tokenizer->document = tokenizer_document(tokenizer);
    free(text);
}

// Adds the bytes, in the order of their characters in files.
static inline void learn_bytes(Learning* learning, uint32_t byte_token[256]) {
    for (uint32_t c = 0; c < 512; c++) {
        const int b = letter_to_byte(c);
        if (b < 0) continue;
        const unsigned char byte = (unsigned char)b;
        byte_token[b] = (uint32_t)learning->tokens.words;
        word_counts_add(&learning->tokens, &byte, 1, 1);
    }
}

// Makes a vocabulary of these words: `vocab` > 256 tokens, the last of them "<|endoftext|>"; fewer if no other pair has
// a count of `least`.
static inline void tokenizer_learn(Tokenizer* tokenizer, const WordCounts* words, int vocab, int64_t least,
                                   SplitKind split) {
    Learning learning = {};
    uint32_t byte_token[256];
    word_counts_open(&learning.tokens);
    learn_bytes(&learning, byte_token);
    learn_begin(&learning, words, byte_token);
    learn_merges(&learning, vocab - 1, least);
    learn_finish(tokenizer, &learning, split, "<|endoftext|>");
    pair_counts_free(&learning.pairs);
    word_counts_free(&learning.tokens);
    free(learning.symbol);
    free(learning.common.entry);
    free(learning.merge);
}
