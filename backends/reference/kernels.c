/* One step of a Llama-style decoder on the CPU, in bfloat16 with float32 sums: the whole step is one call.

   Compiled in several forms from this one text (setup.py): with AVX-512 bfloat16 instructions, with AVX2, and plain.
   Vectors are GCC's portable ones; only `tile` has a special instruction. `native.py` binds it.

   A step's tokens lie in one row each, whatever request they belong to; a decode is a chunk of one token. Threads take
   pieces of each phase (a matrix product, attention, ...) as they come, and go on to the next when all are done.

   Weights and the KV cache are kept in *panels*, so that every product here, weights, scores or attended values, runs
   through `tile`: a few rows times thirty-two columns. Pairs of neighbours along the summed dimension lie together,
   as the instruction wants them:

       weights  [columns / 32] [in / 2] [32] [2]
       keys     [blocks] [KV heads] [head_dim / 2] [16 tokens] [2]
       values   [blocks] [KV heads] [16 tokens / 2] [head_dim] [2]      a block holds 16 tokens here

   A row's sums are made in one order whatever rows are beside it, and keys come in tiles that begin at multiples of 32.
   So a token's result depends on its own context alone: not on batch, chunks or preemption. */

#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

typedef uint16_t bf16;
typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

/* A tile has at most ROWS rows: with AVX-512 its sums then fill 24 of 32 registers, else 12 of 16 at a time. */
enum { HALF = 16, COLUMNS = 2 * HALF, ROWS = LANES == 16 ? 12 : 6, ROW_BLOCK = 192, CELL = 16, QUERY_ROWS = 96 };
#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* ---- The model and a step, as native.py fills them ---------------------------------------------------------- */

typedef struct {
    const bf16 *panels;
    const float *bias; /* one a column (padded), or NULL */
    int64_t inputs, columns; /* padded to 2 and to COLUMNS */
} Matrix;

typedef struct {
    const float *attention_norm, *mlp_norm, *qk_norm; /* qk_norm: [query + KV heads, head_dim], or NULL */
    Matrix qkv, out, gate_up, down; /* gate_up: 16 columns of gate, then 16 of up, in each panel */
    bf16 *keys, *values;
} Layer;

typedef struct {
    int64_t layers, hidden, inner, heads, kv_heads, head_dim, threads; /* hidden and head_dim: multiples of COLUMNS */
    float epsilon;
    const bf16 *embedding; /* [vocabulary, hidden] */
    const float *cosines, *sines; /* [positions, head_dim], sines with the signs of the two halves */
    const Layer *layer;
} Model;

typedef struct {
    int64_t first, start, count; /* rows [first, first + count) are tokens [start, start + count) of one request */
    const int32_t *cells; /* its blocks of 16 tokens */
} Item;

typedef struct {
    int64_t rows, items, units;
    const int64_t *tokens, *positions;
    const int64_t *slots; /* where each row's key and value go: cell * 16 + offset */
    const Item *item;
    const int32_t *unit; /* pieces of attention: (item, first token of the piece) each, without the head */
    float *stream; /* [rows, hidden]: the residual stream; the step's result */
    bf16 *normed; /* [rows, hidden] */
    float *qkv; /* [rows, columns of qkv] */
    bf16 *queries, *attended; /* [rows, heads * head_dim] */
    bf16 *mlp; /* [rows, inner padded to COLUMNS] */
} Step;

/* ---- A vector of floats at a time ----------------------------------------------------------------------------- */

INLINE floats load(const float *from) { floats v; memcpy(&v, from, sizeof v); return v; }
INLINE void store(float *to, floats v) { memcpy(to, &v, sizeof v); }
INLINE floats all(float value) { return value - (floats){0}; }

INLINE floats pick(ints where, floats yes, floats no) { return (floats)((where & (ints)yes) | (~where & (ints)no)); }

INLINE float widened(bf16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

INLINE floats widen(const bf16 *from) {
    halves h;
    memcpy(&h, from, sizeof h);
    return (floats)(__builtin_convertvector(h, words) << 16);
}

INLINE void narrow(bf16 *to, floats v) { /* round to nearest, ties to even */
    words bits = (words)v;
    bits += 0x7fff + ((bits >> 16) & 1);
    halves h = __builtin_convertvector(bits >> 16, halves);
    memcpy(to, &h, sizeof h);
}

INLINE float sum(floats v) {
    float part[LANES];
    store(part, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
}

INLINE float largest(floats v) {
    float part[LANES];
    store(part, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) part[i] = part[i] > part[i + width] ? part[i] : part[i + width];
    return part[0];
}

INLINE floats exp2v(floats x) { /* 2 to the x, which is held to +-126. Relative error below 3e-7. */
    const floats magic = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    x = pick(x < -126.0f, all(-126.0f), pick(x > 126.0f, all(126.0f), x));
    floats whole = (x + magic) - magic, f = x - whole;
    floats p = all(1.5403530e-4f);
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    return p * (floats)((__builtin_convertvector(whole, ints) + 127) << 23);
}

#define LOG2E 1.44269504f

/* ---- Work shared by threads --------------------------------------------------------------------------------- */

/* A phase is over when all its pieces are done, not when all threads have arrived: one that the system does not let run
   (a load client wants its core) holds nobody up unless it has a piece in hand. */
typedef struct {
    _Alignas(64) _Atomic int64_t taken;
    _Atomic int64_t done;
} Phase;

typedef struct {
    Phase *phase;
    int64_t pieces, mine;
} Share;

enum { SPINS = 500 }; /* some microseconds, a few pieces' time, before others may have the core */

/* Another piece for this thread; or wait until all are done, and 0. */
INLINE int next(Share *share, int64_t *piece) {
    *piece = atomic_fetch_add_explicit(&share->phase->taken, 1, memory_order_relaxed);
    if (*piece < share->pieces) return (int)++share->mine;
    atomic_fetch_add_explicit(&share->phase->done, share->mine, memory_order_release);
    for (int spins = 0; atomic_load_explicit(&share->phase->done, memory_order_acquire) < share->pieces; spins++) {
        if (spins > SPINS) sched_yield();
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    return 0;
}

#define SHARED(piece, phase, pieces) \
    int64_t piece; \
    for (Share share = {phase, pieces, 0}; next(&share, &piece);)

/* ---- Products ----------------------------------------------------------------------------------------------- */

/* sums[rows][32] (rows `sums_stride` apart) = or += x[rows][2 * pairs] times two panels of 16 columns. */
#ifdef __AVX512BF16__
INLINE void tile_of(const int rows, const bf16 *x, int64_t x_stride, const bf16 *left, const bf16 *right, int64_t step,
                    int64_t pairs, float *sums, int64_t sums_stride, int add, const int cold) {
    (void)cold; /* weights are gone through in one line, which the processor foresees */
    __m512 total[ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        total[r][0] = add ? _mm512_loadu_ps(sums + r * sums_stride) : _mm512_setzero_ps();
        total[r][1] = add ? _mm512_loadu_ps(sums + r * sums_stride + HALF) : _mm512_setzero_ps();
    }
    const bf16 *base[] = {x, x + 4 * x_stride, x + 8 * x_stride};
    for (int64_t p = 0; p < pairs; p++) {
        __m512bh a = (__m512bh)_mm512_loadu_si512(left), b = (__m512bh)_mm512_loadu_si512(right);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            int32_t two;
            memcpy(&two, base[r / 4] + r % 4 * x_stride, sizeof two);
            __m512bh both = (__m512bh)_mm512_set1_epi32(two);
            total[r][0] = _mm512_dpbf16_ps(total[r][0], both, a);
            total[r][1] = _mm512_dpbf16_ps(total[r][1], both, b);
        }
        base[0] += 2, base[1] += 2, base[2] += 2, left += step, right += step;
        /* Keeps the compiler from giving each of twelve rows a pointer of its own, for which there are no registers. */
        __asm__("" : "+r"(base[0]), "+r"(base[1]), "+r"(base[2]));
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(sums + r * sums_stride, total[r][0]);
        _mm512_storeu_ps(sums + r * sums_stride + HALF, total[r][1]);
    }
}
#else
/* x is widened beforehand, a stretch at a time, so that an FMA waits for loads alone. Of up to two rows four vectors of columns are
   summed at once, so that few sums wait for their last; of more rows two: as many as 16 registers hold. */
enum { STRETCH = 128, AHEAD = 16 }; /* pairs */
INLINE void tile_of(const int rows, const bf16 *x, int64_t x_stride, const bf16 *left, const bf16 *right, int64_t step,
                    int64_t pairs, float *sums, int64_t sums_stride, int add, const int cold) {
    const int vectors = rows <= 2 ? 4 : 2;
    float inputs[ROWS][2 * STRETCH + HALF]; /* rows lie in different lines of the cache */
    for (int64_t first = 0; first < pairs; first += STRETCH) {
        int64_t count = MIN(STRETCH, pairs - first);
        for (int r = 0; r < rows; r++) {
            const bf16 *from = x + r * x_stride + 2 * first;
            int64_t i = 0;
            for (; i + LANES <= 2 * count; i += LANES) store(inputs[r] + i, widen(from + i));
            for (; i < 2 * count; i++) inputs[r][i] = widened(from[i]);
        }
        for (int column = 0; column < COLUMNS; column += vectors * LANES) {
            floats total[ROWS][4];
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    total[r][v] = add || first ? load(sums + r * sums_stride + column + v * LANES) : (floats){0};
            for (int64_t p = 0; p < count; p++) {
                if (cold && !column) {
                    int64_t next = MIN(first + p + AHEAD, pairs - 1) * step;
                    __builtin_prefetch(left + next);
                    __builtin_prefetch(right + next);
                }
#pragma GCC unroll 2
                for (int odd = 0; odd < 2; odd++) { /* of each pair the first input, then the second */
                    floats weights[4];
#pragma GCC unroll 4
                    for (int v = 0; v < vectors; v++) {
                        int from = column + v * LANES;
                        words both;
                        memcpy(&both, (from < HALF ? left : right) + 2 * (from % HALF) + (first + p) * step, sizeof both);
                        weights[v] = (floats)(odd ? both & 0xffff0000u : both << 16);
                    }
#pragma GCC unroll 6
                    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                        for (int v = 0; v < vectors; v++) total[r][v] += weights[v] * inputs[r][2 * p + odd];
                }
            }
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    store(sums + r * sums_stride + column + v * LANES, total[r][v]);
        }
    }
}
#endif

#define FORM(n, cold) tile_of(n, x, x_stride, left, right, step, pairs, sums, sums_stride, add, cold)
#ifdef __AVX512BF16__
#define CASE(n) case n: FORM(n, 0); break;
#else
#define CASE(n) case n: if (cold) FORM(n, 1); else FORM(n, 0); break;
#endif
/* `cold`: the panels have not been read in this product, so they come from memory. */
static void tile(int rows, const bf16 *x, int64_t x_stride, const bf16 *left, const bf16 *right, int64_t step,
                 int64_t pairs, float *sums, int64_t sums_stride, int add, int cold) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#ifdef __AVX512BF16__
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
    (void)cold;
}

enum { STORE, ADD, GATE }; /* what becomes of a product: kept, added to what is there, or silu(gate) * up */

INLINE void put(int kind, const float *sums, const float *bias, void *out, int64_t column) {
    for (int i = 0; i < (kind == GATE ? HALF : COLUMNS); i += LANES) {
        floats value = load(sums + i);
        if (bias) value += load(bias + column + i);
        if (kind == GATE) {
            floats up = load(sums + HALF + i);
            if (bias) up += load(bias + column + HALF + i);
            narrow((bf16 *)out + column / 2 + i, value / (1.0f + exp2v(value * -LOG2E)) * up);
            continue;
        }
        float *to = (float *)out + column + i;
        store(to, kind == ADD ? load(to) + value : value);
    }
}

/* x [rows, inputs] times a matrix. */
INLINE void product(Phase *phase, int kind, const bf16 *x, int64_t x_stride, int64_t rows, const Matrix *m, void *out,
                    int64_t out_stride) {
    int64_t panels = m->columns / COLUMNS, blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    int64_t size = kind == GATE ? sizeof(bf16) : sizeof(float);
    SHARED(work, phase, blocks * panels) {
        int64_t panel = work % panels, first = work / panels * ROW_BLOCK, last = MIN(first + ROW_BLOCK, rows);
        const bf16 *weights = m->panels + panel * m->inputs * COLUMNS;
        int64_t tiles = (last - first + ROWS - 1) / ROWS;
        for (int64_t t = 0; t < tiles; t++) { /* tiles of nearly equal height */
            int64_t begin = first + (last - first) * t / tiles, end = first + (last - first) * (t + 1) / tiles;
            float sums[ROWS * COLUMNS] __attribute__((aligned(64)));
            tile((int)(end - begin), x + begin * x_stride, x_stride, weights, weights + 2 * HALF, 2 * COLUMNS,
                 m->inputs / 2, sums, COLUMNS, 0, !t);
            for (int64_t r = begin; r < end; r++)
                put(kind, sums + (r - begin) * COLUMNS, m->bias, (char *)out + r * out_stride * size, panel * COLUMNS);
        }
    }
}

/* ---- Norms, rotation, attention ----------------------------------------------------------------------------- */

INLINE float inverse_rms(const float *x, int64_t size, float epsilon) {
    floats squares = {0};
    for (int64_t i = 0; i < size; i += LANES) squares += load(x + i) * load(x + i);
    return 1.0f / sqrtf(sum(squares) / (float)size + epsilon);
}

INLINE void norm(Phase *phase, const Model *model, const Step *step, const float *weight) {
    int64_t size = model->hidden;
    SHARED(work, phase, step->rows) {
        const float *x = step->stream + work * size;
        float scale = inverse_rms(x, size, model->epsilon);
        for (int64_t i = 0; i < size; i += LANES)
            narrow(step->normed + work * size + i, load(x + i) * scale * load(weight + i));
    }
}

/* Rotary embedding of one head, into `out`; coordinate i turns with coordinate i + head_dim / 2. */
INLINE void rotate(const Model *model, const float *head, const float *weight, int64_t position, float factor, bf16 *out) {
    int64_t dim = model->head_dim, half = dim / 2;
    const float *cosine = model->cosines + position * dim, *sine = model->sines + position * dim;
    float scale = weight ? inverse_rms(head, dim, model->epsilon) : 1.0f;
    for (int64_t i = 0; i < dim; i += LANES) {
        int64_t other = i < half ? i + half : i - half;
        floats x = load(head + i) * scale, y = load(head + other) * scale;
        if (weight) x *= load(weight + i), y *= load(weight + other);
        narrow(out + i, (x * load(cosine + i) + y * load(sine + i)) * factor);
    }
}

/* Turns a token's queries and key, and writes its key and value into their cell. */
INLINE void write_token(const Model *model, const Step *step, const Layer *layer, int64_t r) {
    int64_t dim = model->head_dim, heads = model->heads, kv_heads = model->kv_heads, position = step->positions[r];
    const float *row = step->qkv + r * layer->qkv.columns, *weights = layer->qk_norm;
    for (int64_t h = 0; h < heads; h++)
        rotate(model, row + h * dim, weights ? weights + h * dim : NULL, position, 1.0f / sqrtf((float)dim),
               step->queries + (r * heads + h) * dim);
    int64_t cell = step->slots[r] / CELL, offset = step->slots[r] % CELL;
    for (int64_t h = 0; h < kv_heads; h++) {
        bf16 key[dim], value[dim];
        rotate(model, row + (heads + h) * dim, weights ? weights + (heads + h) * dim : NULL, position, 1.0f, key);
        for (int64_t i = 0; i < dim; i += LANES) narrow(value + i, load(row + (heads + kv_heads + h) * dim + i));
        bf16 *keys = layer->keys + (cell * kv_heads + h) * dim * CELL + 2 * offset;
        bf16 *values = layer->values + (cell * kv_heads + h) * dim * CELL + offset / 2 * 2 * dim + offset % 2;
        for (int64_t i = 0; i < dim; i++) {
            keys[i / 2 * 2 * CELL + i % 2] = key[i];
            values[2 * i] = value[i];
        }
    }
}

/* A cell that an item begins but does not fill: its other values are zero from now on, since a hidden one still enters
   the sum as 0 x itself, and a former owner may have left inf or NaN there. */
INLINE void clear_tail(const Model *model, const Layer *layer, const Item *item) {
    int64_t dim = model->head_dim, end = item->start + item->count, used = end % CELL;
    if (!used || item->start > end - used) return;
    bf16 *values = layer->values + item->cells[end / CELL] * model->kv_heads * dim * CELL;
    for (int64_t h = 0; h < model->kv_heads; h++)
        for (int64_t token = used; token < CELL; token++)
            for (int64_t i = 0; i < dim; i++) values[h * dim * CELL + token / 2 * 2 * dim + 2 * i + token % 2] = 0;
}

INLINE void write_kv(Phase *phase, const Model *model, const Step *step, const Layer *layer) {
    SHARED(work, phase, step->rows + step->items) {
        if (work < step->rows)
            write_token(model, step, layer, work);
        else
            clear_tail(model, layer, step->item + work - step->rows);
    }
}

typedef struct { /* of one thread, for one piece of attention: QUERY_ROWS rows at most */
    bf16 *queries; /* [rows, head_dim] */
    float *sums; /* [rows, head_dim] */
    float scores[QUERY_ROWS * COLUMNS], highest[QUERY_ROWS], weight[QUERY_ROWS];
    bf16 shares[QUERY_ROWS * COLUMNS];
} Piece;

/* Scores of a row against 32 keys, of which the first `seen` count: to shares, with the running maximum and sum. */
INLINE void soften(Piece *piece, int64_t row, int64_t seen, int64_t dim) {
    float *scores = piece->scores + row * COLUMNS, *sums = piece->sums + row * dim;
    bf16 *shares = piece->shares + row * COLUMNS;
    if (seen <= 0) {
        memset(shares, 0, COLUMNS * sizeof *shares);
        return;
    }
    for (int64_t i = seen; i < COLUMNS; i++) scores[i] = -INFINITY;
    floats tops = load(scores);
    for (int i = LANES; i < COLUMNS; i += LANES) tops = pick(load(scores + i) > tops, load(scores + i), tops);
    float top = largest(tops) * LOG2E, before = piece->highest[row];
    if (top > before) {
        float scale = before == -INFINITY ? 0.0f : exp2f(before - top);
        piece->highest[row] = top;
        piece->weight[row] *= scale;
        for (int64_t i = 0; i < dim; i += LANES) store(sums + i, load(sums + i) * scale);
    } else {
        top = before;
    }
    floats total = {0};
    for (int i = 0; i < COLUMNS; i += LANES) {
        floats score = load(scores + i);
        floats share = pick(score > -INFINITY, exp2v(score * LOG2E - top), (floats){0});
        total += share;
        narrow(shares + i, share);
    }
    piece->weight[row] += sum(total);
}

/* Start to fetch the keys and values of a cell: cells lie anywhere, so the processor cannot guess the next. */
INLINE void fetch(const bf16 *keys, const bf16 *values, int64_t dim) {
    for (int64_t i = 0; i < dim * CELL; i += 32) __builtin_prefetch(keys + i);
    for (int64_t i = 0; i < dim * CELL; i += 32) __builtin_prefetch(values + i);
}

/* Attention of some tokens of an item in one KV head; the queries of the head's group are rows like those of tokens. */
static void attend(const Model *model, const Step *step, const Layer *layer, const Item *item, int64_t from, int64_t head,
                   Piece *piece) {
    int64_t dim = model->head_dim, group = model->heads / model->kv_heads, width = model->heads * dim;
    int64_t tokens = MIN(item->count - from, QUERY_ROWS / group), rows = tokens * group;
    for (int64_t t = 0; t < tokens; t++) {
        const bf16 *queries = step->queries + (item->first + from + t) * width + head * group * dim;
        memcpy(piece->queries + t * group * dim, queries, group * dim * sizeof *queries);
    }
    memset(piece->sums, 0, rows * dim * sizeof *piece->sums);
    for (int64_t r = 0; r < rows; r++) piece->highest[r] = -INFINITY, piece->weight[r] = 0;

    int64_t first = item->start + from, context = first + tokens; /* the last token sees all of it */
    for (int64_t key = 0; key < context; key += COLUMNS) {
        int64_t cells[2] = {item->cells[key / CELL], item->cells[(key + CELL < context ? key + CELL : key) / CELL]};
        const bf16 *keys[2], *values[2];
        for (int half = 0; half < 2; half++) {
            keys[half] = layer->keys + (cells[half] * model->kv_heads + head) * dim * CELL;
            values[half] = layer->values + (cells[half] * model->kv_heads + head) * dim * CELL;
            if (key + COLUMNS + half * CELL < context) {
                int64_t place = (item->cells[key / CELL + 2 + half] * model->kv_heads + head) * dim * CELL;
                fetch(layer->keys + place, layer->values + place, dim);
            }
        }
        for (int64_t r = 0; r < rows; r += ROWS)
            tile((int)MIN(ROWS, rows - r), piece->queries + r * dim, dim, keys[0], keys[1], COLUMNS, dim / 2,
                 piece->scores + r * COLUMNS, COLUMNS, 0, 0);
        for (int64_t r = 0; r < rows; r++) soften(piece, r, first + r / group - key + 1, dim);
        for (int half = 0; half < 2 && key + half * CELL < context; half++)
            for (int64_t r = 0; r < rows; r += ROWS)
                for (int64_t i = 0; i < dim; i += COLUMNS)
                    tile((int)MIN(ROWS, rows - r), piece->shares + r * COLUMNS + half * CELL, COLUMNS,
                         values[half] + 2 * i, values[half] + 2 * (i + HALF), 2 * dim, CELL / 2,
                         piece->sums + r * dim + i, dim, 1, 0);
    }
    for (int64_t r = 0; r < rows; r++) {
        bf16 *out = step->attended + (item->first + from + r / group) * width + (head * group + r % group) * dim;
        for (int64_t i = 0; i < dim; i += LANES) narrow(out + i, load(piece->sums + r * dim + i) / piece->weight[r]);
    }
}

/* ---- The step ----------------------------------------------------------------------------------------------- */

enum { PHASES = 8 }; /* of a layer */
#define LINES(bytes) (((bytes) + 63) / 64 * 64)

/* The residual stream after the last layer, [rows, hidden], into step->stream. 0 where there is no memory to work in: then
   nothing was done. */
int dyno_step(const Model *model, const Step *step) {
    int64_t hidden = model->hidden, inner = (model->inner + COLUMNS - 1) / COLUMNS * COLUMNS;
    int64_t width = model->heads * model->head_dim, rows = step->rows;
    int64_t shared = (PHASES * model->layers + 1) * sizeof(Phase);
    int64_t queries = LINES(QUERY_ROWS * model->head_dim * sizeof(bf16));
    int64_t own = LINES(sizeof(Piece)) + queries + LINES(QUERY_ROWS * model->head_dim * sizeof(float));
    char *room = aligned_alloc(64, shared + model->threads * own); /* phases, then a piece, queries and sums a thread */
    if (!room) return 0;
    memset(room, 0, shared);
#pragma omp parallel num_threads(model->threads)
    {
        Phase *phase = (Phase *)room;
        Piece *piece = (Piece *)(room + shared + omp_get_thread_num() * own);
        piece->queries = (bf16 *)((char *)piece + LINES(sizeof(Piece)));
        piece->sums = (float *)((char *)piece->queries + queries);
        SHARED(row, phase++, rows) {
            const bf16 *from = model->embedding + step->tokens[row] * hidden;
            for (int64_t i = 0; i < hidden; i += LANES) store(step->stream + row * hidden + i, widen(from + i));
        }
        for (const Layer *layer = model->layer; layer < model->layer + model->layers; layer++) {
            norm(phase++, model, step, layer->attention_norm);
            product(phase++, STORE, step->normed, hidden, rows, &layer->qkv, step->qkv, layer->qkv.columns);
            write_kv(phase++, model, step, layer);
            SHARED(work, phase++, step->units * model->kv_heads) {
                const int32_t *unit = step->unit + work / model->kv_heads * 2;
                attend(model, step, layer, step->item + unit[0], unit[1], work % model->kv_heads, piece);
            }
            product(phase++, ADD, step->attended, width, rows, &layer->out, step->stream, hidden);
            norm(phase++, model, step, layer->mlp_norm);
            product(phase++, GATE, step->normed, hidden, rows, &layer->gate_up, step->mlp, inner);
            product(phase++, ADD, step->mlp, inner, rows, &layer->down, step->stream, hidden);
        }
    }
    free(room);
    return 1;
}

/* out [rows, columns] = x [rows, inputs] times a matrix. */
void dyno_product(const bf16 *x, int64_t rows, const Matrix *matrix, float *out, int64_t threads) {
    Phase phase = {0};
#pragma omp parallel num_threads(threads)
    product(&phase, STORE, x, matrix->inputs, rows, matrix, out, matrix->columns);
}

/* What this form needs of the processor: 1 when it is there. */
int dyno_runs_here(void) {
#if defined(__AVX512BF16__)
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}
