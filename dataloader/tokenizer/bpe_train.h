/*
dataloader/tokenizer/bpe_train.h: a vocabulary from a text (Sennrich et al. 2016, algorithm 1).

Begin with the 256 bytes. Count how often any two tokens stand side by side within a word; make the commonest pair a new token; do so until
the vocabulary is as large as wanted. Of pairs that are equally common the one with the smaller numbers comes first (the left token's
number decides, then the right one's), so that a text has one vocabulary, on any machine and with any number of threads. Bytes are numbered
as in GPT-2, in the order of the characters that stand for them in files, and Hugging Face's trainer breaks ties alike: it makes the same
merges from the same text, which is what the tests compare with.

What is counted is not the text but its words, each once, with the number of times that it is there (WordCounts).

How it becomes fast: nothing is counted twice.
    counts      A merge changes the counts of those pairs only that it takes part in: x l r y becomes x m y, so (x l) and (r y) are one
                less for each place, (x m) and (m y) one more.
    places      Each pair has a list of the places where it came about; places that a later merge has changed are known by what stands
                there now. All work together is proportional to the number of places that ever came about.
    heap        of (count, pair). A count that has fallen is put right when its entry comes to the top.
*/
#ifndef BPE_TRAIN_H
#define BPE_TRAIN_H

#include "vocab_files.h"

// ----------------------------------------------------------------------------------------------------------------
// Words and how often they are there

typedef struct {
    size_t begin; // in WordCounts.bytes
    uint32_t n;
    int64_t count;
} CountedWord;

typedef struct {
    unsigned char* bytes;
    size_t used, room;
    CountedWord* word;
    int words, words_room;
    int32_t* slot; // (mask + 1): a hash table of words; -1: free
    uint64_t mask;
} WordCounts;

static inline void word_counts_open(WordCounts* w) {
    memset(w, 0, sizeof *w);
    w->mask = 1023;
    w->slot = (int32_t*)checked_malloc((w->mask + 1) * sizeof *w->slot, "the words of a text");
    memset(w->slot, 0xFF, (w->mask + 1) * sizeof *w->slot);
}

static inline void word_counts_free(WordCounts* w) {
    free(w->bytes);
    free(w->word);
    free(w->slot);
    memset(w, 0, sizeof *w);
}

static inline uint64_t word_slot(const WordCounts* w, const unsigned char* s, size_t n) {
    uint64_t i = hash_bytes(s, n) & w->mask;
    for (; w->slot[i] >= 0; i = (i + 1) & w->mask) {
        const CountedWord* c = &w->word[w->slot[i]];
        if (c->n == n && memcmp(w->bytes + c->begin, s, n) == 0) break;
    }
    return i;
}

static inline void word_counts_widen(WordCounts* w) {
    free(w->slot);
    w->mask = 4 * w->mask + 3;
    w->slot = (int32_t*)checked_malloc((w->mask + 1) * sizeof *w->slot, "the words of a text");
    memset(w->slot, 0xFF, (w->mask + 1) * sizeof *w->slot);
    for (int i = 0; i < w->words; i++) w->slot[word_slot(w, w->bytes + w->word[i].begin, w->word[i].n)] = i;
}

// Counts a word `count` times, 0 < n <= WORD_MOST.
static inline void word_counts_add(WordCounts* w, const unsigned char* s, size_t n, int64_t count) {
    if ((uint64_t)w->words * 2 > w->mask) word_counts_widen(w);
    const uint64_t slot = word_slot(w, s, n);
    if (w->slot[slot] >= 0) {
        w->word[w->slot[slot]].count += count;
        return;
    }
    if (w->words == w->words_room)
        w->word = (CountedWord*)checked_grow(w->word, &w->words_room, 1024, sizeof *w->word, "the words of a text");
    while (w->used + n > w->room) {
        w->room = 2 * w->room + 65536;
        w->bytes = (unsigned char*)realloc(w->bytes, w->room);
        if (!w->bytes) die("out of memory: %.1f MB for the words of a text", (double)w->room / 1e6);
    }
    memcpy(w->bytes + w->used, s, n);
    const CountedWord word = {w->used, (uint32_t)n, count};
    w->slot[slot] = w->words;
    w->word[w->words++] = word;
    w->used += n;
}

// Counts the words of a text.
static inline void word_counts_text(WordCounts* w, SplitKind split, const unsigned char* s, size_t n) {
    for (size_t at = 0, end; at < n; at = end) {
        end = split_word(split, s, n, at);
        if (end - at > WORD_MOST)
            die("a word of %zu bytes without a blank: not a text; the longest that can be learned from has %d",
                end - at, WORD_MOST);
        word_counts_add(w, s + at, end - at, 1);
    }
}

// Adds what another thread has counted.
static inline void word_counts_join(WordCounts* w, const WordCounts* other) {
    for (int i = 0; i < other->words; i++)
        word_counts_add(w, other->bytes + other->word[i].begin, other->word[i].n, other->word[i].count);
}

// ----------------------------------------------------------------------------------------------------------------
// Pairs: a hash table of counts and places, and a heap

typedef struct {
    uint64_t pair;         // left << 32 | right; NO_PAIR: the slot is free
    int64_t count, queued; // queued: the count of its newest entry in the heap
    uint32_t* place;       // symbols where the pair came about
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

static inline void pair_counts_open(PairCounts* p, uint64_t mask) {
    p->mask = mask, p->used = 0;
    p->slot = (PairCount*)checked_calloc(mask + 1, sizeof *p->slot, "the pairs of a text");
    for (uint64_t i = 0; i <= mask; i++) p->slot[i].pair = NO_PAIR;
}

static inline void pair_counts_free(PairCounts* p) {
    for (uint64_t i = 0; i <= p->mask; i++) free(p->slot[i].place);
    free(p->slot);
}

static inline PairCount* pair_slot(const PairCounts* p, uint64_t pair) {
    uint64_t i = hash_pair(pair) & p->mask;
    while (p->slot[i].pair != pair && p->slot[i].pair != NO_PAIR) i = (i + 1) & p->mask;
    return &p->slot[i];
}

// The pair's counts, which are there from now on. Pointers to others may be gone.
static inline PairCount* pair_count(PairCounts* p, uint64_t pair) {
    if (2 * p->used > p->mask) {
        const PairCounts before = *p;
        pair_counts_open(p, 2 * before.mask + 1);
        for (uint64_t i = 0; i <= before.mask; i++)
            if (before.slot[i].pair != NO_PAIR) *pair_slot(p, before.slot[i].pair) = before.slot[i];
        p->used = before.used;
        free(before.slot);
    }
    PairCount* c = pair_slot(p, pair);
    if (c->pair == NO_PAIR) c->pair = pair, p->used++;
    return c;
}

// True if a comes before b: more common, or of smaller numbers.
static inline bool is_commoner(const CommonPair* a, const CommonPair* b) {
    return a->count != b->count ? a->count > b->count : a->pair < b->pair;
}

static inline void common_push(CommonPairs* h, uint64_t pair, int64_t count) {
    if (h->count == h->room)
        h->entry = (CommonPair*)checked_grow(h->entry, &h->room, 1024, sizeof *h->entry, "the pairs of a text");
    const CommonPair entry = {count, pair};
    int i = h->count++;
    for (; i > 0 && is_commoner(&entry, &h->entry[(i - 1) / 2]); i = (i - 1) / 2) h->entry[i] = h->entry[(i - 1) / 2];
    h->entry[i] = entry;
}

static inline CommonPair common_pop(CommonPairs* h) {
    const CommonPair top = h->entry[0], last = h->entry[--h->count];
    int i = 0;
    for (int child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && is_commoner(&h->entry[child + 1], &h->entry[child])) child++;
        if (!is_commoner(&h->entry[child], &last)) break;
        h->entry[i] = h->entry[child];
    }
    h->entry[i] = last;
    return top;
}

// ----------------------------------------------------------------------------------------------------------------
// Learning

// A byte of a word, or what bytes have become. Words lie one behind the other, each with a symbol of no token before it; one more stands
// at the end.
typedef struct {
    uint32_t token, previous, next; // token NO_TOKEN_HERE: the edge of a word, or taken in by what stands before
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

static inline uint64_t pair_at(const Learning* l, uint32_t i) {
    return (uint64_t)l->symbol[i].token << 32 | l->symbol[l->symbol[i].next].token;
}

static inline bool is_pair(const Learning* l, uint32_t i) {
    return l->symbol[i].token != NO_TOKEN_HERE && l->symbol[l->symbol[i].next].token != NO_TOKEN_HERE;
}

// The pair at symbol i is there now (times = 1), or no longer (-1).
static inline void count_pair(Learning* l, uint32_t i, int times) {
    if (!is_pair(l, i)) return;
    PairCount* c = pair_count(&l->pairs, pair_at(l, i));
    c->count += times * l->words->word[l->symbol[i].word].count;
    if (times < 0) return;
    if (c->places == c->room)
        c->place = (uint32_t*)checked_grow(c->place, &c->room, 4, sizeof *c->place, "the places of a pair");
    c->place[c->places++] = i;
}

// Puts a pair into the heap, if its count is not there already.
static inline void offer_pair(Learning* l, PairCount* c) {
    if (c->count == c->queued || c->count == 0) return;
    c->queued = c->count;
    common_push(&l->common, c->pair, c->count);
}

// Words as symbols, their pairs counted.
static inline void learn_begin(Learning* l, const WordCounts* words, const uint32_t byte_token[256]) {
    const uint64_t symbols = words->used + (uint64_t)words->words + 1;
    if (symbols >= NO_TOKEN_HERE)
        die("%.1f GB of different words are too many to learn from: take a part of the text",
            (double)words->used / 1e9);
    l->words = words;
    l->symbol = (LearnSymbol*)checked_malloc(symbols * sizeof *l->symbol, "the words of a text");
    uint32_t n = 0;
    for (int w = 0; w <= words->words; w++) {
        const uint32_t bytes = w < words->words ? words->word[w].n : 0;
        for (uint32_t k = 0; k < bytes + 1; k++, n++) {
            const uint32_t token = k == 0 ? NO_TOKEN_HERE : byte_token[words->bytes[words->word[w].begin + k - 1]];
            const LearnSymbol s = {token, n - 1, n + 1, (uint32_t)w};
            l->symbol[n] = s;
        }
    }
    pair_counts_open(&l->pairs, 65535);
    for (uint32_t i = 0; i + 1 < n; i++) count_pair(l, i, 1);
    for (uint64_t i = 0; i <= l->pairs.mask; i++)
        if (l->pairs.slot[i].pair != NO_PAIR) offer_pair(l, &l->pairs.slot[i]);
}

// The commonest pair, at least `least` times there; false: there is none.
static inline bool learn_pair(Learning* l, uint64_t* pair, int64_t least) {
    while (l->common.count > 0) {
        const CommonPair top = common_pop(&l->common);
        PairCount* c = pair_slot(&l->pairs, top.pair);
        *pair = top.pair;
        if (c->count == top.count && top.count >= least) return true;
        if (c->count != top.count) offer_pair(l, c);
    }
    return false;
}

static inline int compare_places(const void* a, const void* b) {
    const uint32_t x = *(const uint32_t*)a, y = *(const uint32_t*)b;
    return x < y ? -1 : x > y;
}

// Symbol i and the one to its right become `token`.
static inline void learn_merge_at(Learning* l, uint32_t i, uint32_t token) {
    LearnSymbol *s = &l->symbol[i], *right = &l->symbol[s->next];
    count_pair(l, s->previous, -1);
    count_pair(l, i, -1);
    count_pair(l, s->next, -1);
    right->token = NO_TOKEN_HERE;
    s->token = token;
    s->next = right->next;
    l->symbol[s->next].previous = i;
    count_pair(l, s->previous, 1);
    count_pair(l, i, 1);
}

// Merges a pair everywhere, in the order of the text, which decides for "aaa"; what came about goes to the heap.
static inline void learn_merge(Learning* l, uint64_t pair, uint32_t token) {
    PairCount* c = pair_slot(&l->pairs, pair);
    uint32_t* place = c->place;
    const int places = c->places;
    c->place = NULL, c->places = c->room = 0;
    qsort(place, (size_t)places, sizeof *place, compare_places);
    int merged = 0;
    for (int k = 0; k < places; k++) {
        const uint32_t i = place[k];
        if (!is_pair(l, i) || pair_at(l, i) != pair) continue;
        learn_merge_at(l, i, token);
        place[merged++] = i;
    }
    for (int k = 0; k < merged; k++) {
        const uint32_t around[2] = {l->symbol[place[k]].previous, place[k]};
        for (int j = 0; j < 2; j++) {
            if (l->symbol[place[k]].token == token && is_pair(l, around[j]))
                offer_pair(l, pair_slot(&l->pairs, pair_at(l, around[j])));
        }
    }
    free(place);
}

// The token that these two make: a new one, unless others have made the same bytes.
static inline uint32_t learn_token(Learning* l, uint64_t pair) {
    WordCounts* tokens = &l->tokens;
    const CountedWord left = tokens->word[pair >> 32], right = tokens->word[(uint32_t)pair];
    unsigned char* both = (unsigned char*)checked_malloc((size_t)left.n + right.n, "a token");
    memcpy(both, tokens->bytes + left.begin, left.n);
    memcpy(both + left.n, tokens->bytes + right.begin, right.n);
    word_counts_add(tokens, both, (size_t)left.n + right.n, 1);
    const uint32_t token = (uint32_t)tokens->slot[word_slot(tokens, both, (size_t)left.n + right.n)];
    free(both);
    return token;
}

// Learns merges until there are so many tokens, or no pair is there `least` times any more.
static inline void learn_merges(Learning* l, int tokens, int64_t least) {
    uint64_t pair;
    while (l->tokens.words < tokens && learn_pair(l, &pair, least)) {
        const Merge merge = {pair, (uint32_t)l->merges, learn_token(l, pair)};
        if (l->merges == l->room) l->merge = (Merge*)checked_grow(l->merge, &l->room, 1024, sizeof *l->merge, "merges");
        l->merge[l->merges++] = merge;
        learn_merge(l, pair, merge.token);
    }
}

// What was learned as a vocabulary, and a special token behind all others.
static inline void learn_finish(Tokenizer* t, const Learning* l, SplitKind split, const char* special) {
    Error error;
    const WordCounts* tokens = &l->tokens;
    TokenText* text = (TokenText*)checked_calloc((size_t)tokens->words + 1, sizeof *text, "a vocabulary");
    for (int i = 0; i < tokens->words; i++)
        text[i].bytes = tokens->bytes + tokens->word[i].begin, text[i].n = tokens->word[i].n;
    TokenText* last = &text[tokens->words];
    last->bytes = (const unsigned char*)special, last->n = strlen(special), last->apart = true;
    if (!tokenizer_begin(t, text, tokens->words + 1, split, "what was learned", &error))
        die("internal error: %s", error.text);
    tokenizer_reserve(t, l->merges);
    for (int i = 0; i < l->merges; i++)
        tokenizer_merge(t, (uint32_t)(l->merge[i].pair >> 32), (uint32_t)l->merge[i].pair, l->merge[i].rank,
                        l->merge[i].token);
    tokenizer_add(t, (uint32_t)tokens->words, true, false);
    t->document = tokenizer_document(t);
    free(text);
}

// Bytes in the order of the characters that stand for them in files.
static inline void learn_bytes(Learning* l, uint32_t byte_token[256]) {
    for (uint32_t c = 0; c < 512; c++) {
        const int b = letter_to_byte(c);
        if (b < 0) continue;
        const unsigned char byte = (unsigned char)b;
        byte_token[b] = (uint32_t)l->tokens.words;
        word_counts_add(&l->tokens, &byte, 1, 1);
    }
}

// A vocabulary of these words: `vocab` > 256 tokens, the last of them "<|endoftext|>"; fewer, if no pair is there `least` times any more.
static inline void tokenizer_learn(Tokenizer* t, const WordCounts* words, int vocab, int64_t least, SplitKind split) {
    Learning l;
    uint32_t byte_token[256];
    memset(&l, 0, sizeof l);
    word_counts_open(&l.tokens);
    learn_bytes(&l, byte_token);
    learn_begin(&l, words, byte_token);
    learn_merges(&l, vocab - 1, least);
    learn_finish(t, &l, split, "<|endoftext|>");
    pair_counts_free(&l.pairs);
    word_counts_free(&l.tokens);
    free(l.symbol);
    free(l.common.entry);
    free(l.merge);
}

#endif
