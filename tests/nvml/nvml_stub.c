/* A stand-in for libnvidia-ml.so.1 that plays a script, so that the real binding can be driven without a GPU.
 *
 * NVML_STUB_SCRIPT names a text file, one statement a line (# begins a comment):
 *   epoch NS                        monotonic ns at which every series is at second 0
 *   epoch +SECONDS                  so long after the first call; the instant is written to the script's name + ".epoch"
 *   driver VERSION
 *   device N UUID NAME              a board; names take _ for blanks
 *   mig N PARENT GI UUID            device N is an instance of board PARENT
 *   series N KEY T V [T V ...]      from second T on, KEY is V (nan allowed); before the first T it is the first V
 *   process N PID BYTES             BYTES may be `unknown`
 *   code FUNC RC [after CALLS] [for CALLS] [from SECOND] [until SECOND] [device N]
 *   gpmcode ID RC                   what that GPM metric's own code says
 *   hang FUNC SECONDS [at CALL]     FUNC may be * (any call; its number counts all calls)
 * A key that has no series is NOT_SUPPORTED. Energy (mJ) is the series `energy`, or, with `integrate N BASE`, BASE plus the
 * integral of `power.instant` (mW). GPM values are means of `gpm.ID` between the two samples, exactly; samples closer than
 * 100 ms give NaN. Symbols are hidden at link time by the tests. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <pthread.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT = 7, VERSION_MISMATCH = 25 };
#define MAX_DEVICES 16
#define MAX_SERIES 48
#define MAX_POINTS 64
#define MAX_RULES 64

typedef struct { char key[40]; int n; double t[MAX_POINTS], v[MAX_POINTS]; } Series;
typedef struct { unsigned pid; unsigned long long bytes; } Process;
typedef struct Device {
  int used, index, is_mig; unsigned gi; struct Device *parent;
  char uuid[96], name[96];
  int integrate; double base;
  Series series[MAX_SERIES]; int n_series;
  Process processes[16]; int n_processes;
} Device;
typedef struct { char function[64]; int code, after, span, device; double from, until; } Code;
typedef struct { char function[64]; double seconds; int at; } Hang;
typedef struct { char function[64]; int calls; } Count;
typedef struct { int taken; double t; Device *device; } GpmSample;

static Device devices[MAX_DEVICES];
static Code codes[MAX_RULES]; static int n_codes;
static Hang hangs[MAX_RULES]; static int n_hangs;
static Count counts[128]; static int n_counts; static int all_calls;
static struct { unsigned id; int code; } gpm_codes[32]; static int n_gpm_codes;
static long long epoch; static char driver[80] = "580.00"; static int loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now(void) {
  struct timespec ts; clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)((long long)ts.tv_sec * 1000000000LL + ts.tv_nsec - epoch) / 1e9;
}

static void load(void) {
  if (loaded) return;
  loaded = 1;
  const char *path = getenv("NVML_STUB_SCRIPT");
  FILE *f = path ? fopen(path, "r") : NULL;
  if (!f) return;
  static char line[8192];
  while (fgets(line, sizeof line, f)) {
    char *words[160]; int n = 0;
    for (char *w = strtok(line, " \t\r\n"); w && n < 160; w = strtok(NULL, " \t\r\n")) words[n++] = w;
    if (!n || words[0][0] == '#') continue;
    int d = n > 1 ? atoi(words[1]) : 0;
    if (!strcmp(words[0], "epoch") && words[1][0] == '+') {
      struct timespec ts; clock_gettime(CLOCK_MONOTONIC, &ts);
      epoch = (long long)ts.tv_sec * 1000000000LL + ts.tv_nsec + (long long)(atof(words[1]) * 1e9);
      char name[4096]; snprintf(name, sizeof name, "%s.epoch", path);
      FILE *out = fopen(name, "w");
      if (out) { fprintf(out, "%lld\n", epoch); fclose(out); }
    } else if (!strcmp(words[0], "epoch")) epoch = atoll(words[1]);
    else if (!strcmp(words[0], "driver")) snprintf(driver, sizeof driver, "%s", words[1]);
    else if (!strcmp(words[0], "device")) {
      devices[d].used = 1; devices[d].index = d;
      snprintf(devices[d].uuid, 96, "%s", words[2]);
      snprintf(devices[d].name, 96, "%s", words[3]);
      for (char *c = devices[d].name; *c; c++) if (*c == '_') *c = ' ';
    } else if (!strcmp(words[0], "mig")) {
      devices[d].used = devices[d].is_mig = 1; devices[d].index = d;
      devices[d].parent = &devices[atoi(words[2])]; devices[d].gi = (unsigned)atoi(words[3]);
      snprintf(devices[d].uuid, 96, "%s", words[4]);
      snprintf(devices[d].name, 96, "%.90s MIG", devices[d].parent->name);
    } else if (!strcmp(words[0], "series")) {
      Series *s = &devices[d].series[devices[d].n_series++];
      snprintf(s->key, sizeof s->key, "%s", words[2]);
      for (int i = 3; i + 1 < n; i += 2) { s->t[s->n] = atof(words[i]); s->v[s->n++] = strtod(words[i + 1], NULL); }
    } else if (!strcmp(words[0], "integrate")) { devices[d].integrate = 1; devices[d].base = atof(words[2]); }
    else if (!strcmp(words[0], "process")) {
      Process *p = &devices[d].processes[devices[d].n_processes++];
      p->pid = (unsigned)atoi(words[2]);
      p->bytes = !strcmp(words[3], "unknown") ? ~0ULL : strtoull(words[3], NULL, 10);
    } else if (!strcmp(words[0], "gpmcode")) { gpm_codes[n_gpm_codes].id = (unsigned)d; gpm_codes[n_gpm_codes++].code = atoi(words[2]); }
    else if (!strcmp(words[0], "code")) {
      Code *c = &codes[n_codes++];
      snprintf(c->function, 64, "%s", words[1]); c->code = atoi(words[2]);
      c->device = -1; c->span = 1 << 30; c->from = -1e18; c->until = 1e18;
      for (int i = 3; i + 1 < n; i += 2) {
        if (!strcmp(words[i], "after")) c->after = atoi(words[i + 1]);
        if (!strcmp(words[i], "for")) c->span = atoi(words[i + 1]);
        if (!strcmp(words[i], "from")) c->from = atof(words[i + 1]);
        if (!strcmp(words[i], "until")) c->until = atof(words[i + 1]);
        if (!strcmp(words[i], "device")) c->device = atoi(words[i + 1]);
      }
    } else if (!strcmp(words[0], "hang")) {
      Hang *h = &hangs[n_hangs++];
      snprintf(h->function, 64, "%s", words[1]); h->seconds = atof(words[2]);
      h->at = n > 4 ? atoi(words[4]) : 0;
    }
  }
  fclose(f);
}

/* What every call does first: count itself, hang if told to, and say with which code it is to end. */
static int enter(const char *function, const Device *device) {
  double pause = 0; int code = 0;
  pthread_mutex_lock(&lock);
  load();
  int i = 0;
  while (i < n_counts && strcmp(counts[i].function, function)) i++;
  if (i == n_counts && n_counts < 128) snprintf(counts[n_counts++].function, 64, "%s", function);
  int calls = i < 128 ? ++counts[i].calls : 0;
  all_calls++;
  for (int h = 0; h < n_hangs; h++) {
    int any = !strcmp(hangs[h].function, "*");
    if ((any || !strcmp(hangs[h].function, function)) && (!hangs[h].at || hangs[h].at == (any ? all_calls : calls))) pause = hangs[h].seconds;
  }
  for (int c = 0; c < n_codes; c++) {
    if (strcmp(codes[c].function, function) && strcmp(codes[c].function, "*")) continue;
    if (codes[c].device >= 0 && (!device || device->index != codes[c].device)) continue;
    if (calls > codes[c].after && calls - codes[c].after <= codes[c].span && now() >= codes[c].from && now() < codes[c].until) code = codes[c].code;
  }
  pthread_mutex_unlock(&lock);
  if (pause > 0) {
    struct timespec ts = { (time_t)pause, (long)((pause - (double)(time_t)pause) * 1e9) };
    nanosleep(&ts, NULL);
  }
  return code;
}
#define ENTER(device) do { int rc_ = enter(__func__, device); if (rc_) return rc_; } while (0)

static Series *find(Device *d, const char *key) {
  for (int i = 0; i < d->n_series; i++) if (!strcmp(d->series[i].key, key)) return &d->series[i];
  return NULL;
}
static int value(Device *d, const char *key, double *out) {
  Series *s = find(d, key);
  if (!s || !s->n) return NOT_SUPPORTED;
  double t = now(); *out = s->v[0];
  for (int i = 0; i < s->n && s->t[i] <= t; i++) *out = s->v[i];
  return OK;
}
/* The integral of a step series from second a to second b. */
static double integral(const Series *s, double a, double b) {
  double sum = 0;
  for (int i = 0; i < s->n; i++) {
    double lo = i ? s->t[i] : -1e18, hi = i + 1 < s->n ? s->t[i + 1] : 1e18;
    if (lo < a) lo = a;
    if (hi > b) hi = b;
    if (hi > lo) sum += s->v[i] * (hi - lo);
  }
  return sum;
}
static int as_uint(Device *d, const char *key, unsigned *out) {
  double v; int rc = value(d, key, &v);
  if (!rc) *out = (unsigned)v;
  return rc;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(NULL); return OK; }
int nvmlInit_v2(void) { ENTER(NULL); return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, sizeof text, "stand-in error %d", code); return text; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { ENTER(NULL); snprintf(out, n, "%s", driver); return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { ENTER(NULL); *n = 0; for (int i = 0; i < MAX_DEVICES; i++) *n += devices[i].used && !devices[i].is_mig; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device **out) {
  ENTER(i < MAX_DEVICES ? &devices[i] : NULL);
  if (i >= MAX_DEVICES || !devices[i].used || devices[i].is_mig) return INVALID_ARGUMENT;
  *out = &devices[i]; return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
  ENTER(NULL);
  for (int i = 0; i < MAX_DEVICES; i++) if (devices[i].used && !strcmp(devices[i].uuid, uuid)) { *out = &devices[i]; return OK; }
  return NOT_FOUND;
}
int nvmlDeviceGetUUID(Device *d, char *out, unsigned n) { ENTER(d); snprintf(out, n, "%s", d->uuid); return OK; }
int nvmlDeviceGetName(Device *d, char *out, unsigned n) { ENTER(d); snprintf(out, n, "%s", d->name); return OK; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *p) {
  ENTER(d); memset(p, 0, sizeof *p); p->bus = (unsigned)d->index + 1;
  snprintf(p->bus_id, 32, "00000000:%02X:00.0", p->bus); return OK;
}
int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
  ENTER(d); double v; int rc = value(d, "capability", &v); if (rc) return rc;
  *major = (int)v; *minor = (int)lround((v - *major) * 10); return OK;
}
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
static int memory(Device *d, double *total, double *reserved, double *used) {
  int rc = value(d, "memory.total", total); if (rc) return rc;
  if (value(d, "memory.reserved", reserved)) *reserved = 0;
  return value(d, "memory.used", used);
}
int nvmlDeviceGetMemoryInfo(Device *d, Memory *m) {
  ENTER(d); double total, reserved, used; int rc = memory(d, &total, &reserved, &used); if (rc) return rc;
  m->total = (unsigned long long)total; m->used = (unsigned long long)(used + reserved); m->free = m->total - m->used; return OK;
}
int nvmlDeviceGetMemoryInfo_v2(Device *d, MemoryV2 *m) {
  ENTER(d); if (m->version != 0x02000028) return VERSION_MISMATCH;
  double total, reserved, used; int rc = memory(d, &total, &reserved, &used); if (rc) return rc;
  m->total = (unsigned long long)total; m->reserved = (unsigned long long)reserved; m->used = (unsigned long long)used;
  m->free = m->total - m->used - m->reserved; return OK;
}
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } ProcessInfo;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *n, ProcessInfo *out) {
  ENTER(d);
  unsigned there = (unsigned)d->n_processes, room = *n; *n = there;
  if (!there) return OK;
  if (!out || room < there) return INSUFFICIENT;
  for (unsigned i = 0; i < there; i++) out[i] = (ProcessInfo){ d->processes[i].pid, d->processes[i].bytes, ~0U, ~0U };
  return OK;
}
int nvmlDeviceGetUtilizationRates(Device *d, unsigned *out) { ENTER(d); int rc = as_uint(d, "busy.gpu", &out[0]); return rc ? rc : as_uint(d, "busy.memory", &out[1]); }
int nvmlDeviceGetClockInfo(Device *d, int type, unsigned *out) { ENTER(d); return as_uint(d, type == 2 ? "clock.memory" : "clock.sm", out); }
int nvmlDeviceGetMaxClockInfo(Device *d, int type, unsigned *out) { ENTER(d); return as_uint(d, type == 2 ? "maxclock.memory" : "maxclock.sm", out); }
int nvmlDeviceGetMemoryBusWidth(Device *d, unsigned *out) { ENTER(d); return as_uint(d, "bus", out); }
static int reasons(Device *d, unsigned long long *out) { double v; int rc = value(d, "reasons", &v); if (!rc) *out = (unsigned long long)v; return rc; }
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *out) { ENTER(d); return reasons(d, out); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *out) { ENTER(d); return reasons(d, out); }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *out) { ENTER(d); return as_uint(d, "power.usage", out); }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *out) { ENTER(d); return as_uint(d, "power.limit", out); }
int nvmlDeviceGetPowerManagementDefaultLimit(Device *d, unsigned *out) { ENTER(d); return as_uint(d, "power.default", out); }
static int energy(Device *d, unsigned long long *out) {
  if (d->integrate) {
    Series *s = find(d, "power.instant");
    if (!s) return NOT_SUPPORTED;
    *out = (unsigned long long)(d->base + integral(s, 0, now())); return OK;
  }
  double v; int rc = value(d, "energy", &v); if (!rc) *out = (unsigned long long)v; return rc;
}
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *out) { ENTER(d); return energy(d, out); }
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *out) { (void)sensor; ENTER(d); return as_uint(d, "temperature", out); }
typedef struct { unsigned version; int sensor, degrees; } Temperature;
int nvmlDeviceGetTemperatureV(Device *d, Temperature *t) {
  ENTER(d); if (t->version != 0x0100000C) return VERSION_MISMATCH;
  unsigned v = 0; int rc = as_uint(d, "temperature", &v); t->degrees = (int)v; return rc;
}
int nvmlDeviceGetPersistenceMode(Device *d, unsigned *out) { ENTER(d); return as_uint(d, "persistence", out); }
int nvmlDeviceGetEccMode(Device *d, unsigned *current, unsigned *pending) { ENTER(d); int rc = as_uint(d, "ecc", current); *pending = *current; return rc; }
int nvmlDeviceGetTotalEccErrors(Device *d, int type, int counter, unsigned long long *out) {
  (void)counter; ENTER(d); double v; int rc = value(d, type == 1 ? "ecc.uncorrected" : "ecc.corrected", &v); if (!rc) *out = (unsigned long long)v; return rc;
}
int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) { ENTER(d); int rc = as_uint(d, "mig", current); *pending = *current; return rc; }
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *out) { ENTER(d); *out = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **out) {
  ENTER(d);
  for (int i = 0; i < MAX_DEVICES; i++) if (devices[i].is_mig && devices[i].parent == d && !index--) { *out = &devices[i]; return OK; }
  return NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *d, Device **out) { ENTER(d); if (!d->is_mig) return INVALID_ARGUMENT; *out = d->parent; return OK; }
int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *out) { ENTER(d); if (!d->is_mig) return NOT_SUPPORTED; *out = d->gi; return OK; }
typedef struct { unsigned id, scope; long long stamp, latency; int type, code; union { double d; unsigned ui; unsigned long long ull; } v; } Field;
int nvmlDeviceGetFieldValues(Device *d, int n, Field *fields) {
  ENTER(d);
  for (int i = 0; i < n; i++) {
    Field *f = &fields[i]; unsigned v = 0; unsigned long long e = 0;
    f->code = NOT_SUPPORTED; f->stamp = (long long)time(NULL) * 1000000LL;
    if (f->id == 185) { f->code = as_uint(d, "power.average", &v); f->type = 1; f->v.ui = v; }
    if (f->id == 186) { f->code = as_uint(d, "power.instant", &v); f->type = 1; f->v.ui = v; }
    if (f->id == 83) { f->code = energy(d, &e); f->type = 3; f->v.ull = e; }
  }
  return OK;
}
typedef struct { unsigned version, supported; } GpmSupport;
int nvmlGpmQueryDeviceSupport(Device *d, GpmSupport *s) { ENTER(d); double v = 0; if (value(d, "gpm", &v)) v = 0; s->supported = (unsigned)v; return OK; }
int nvmlGpmSampleAlloc(GpmSample **s) { ENTER(NULL); *s = calloc(1, sizeof **s); return OK; }
int nvmlGpmSampleFree(GpmSample *s) { free(s); return OK; }
int nvmlGpmSampleGet(Device *d, GpmSample *s) {
  ENTER(d); double v = 0; if (d->is_mig || value(d, "gpm", &v) || !v) return NOT_SUPPORTED;
  s->taken = 1; s->t = now(); s->device = d; return OK;
}
int nvmlGpmMigSampleGet(Device *d, unsigned gi, GpmSample *s) {
  ENTER(d);
  for (int i = 0; i < MAX_DEVICES; i++)
    if (devices[i].is_mig && devices[i].parent == d && devices[i].gi == gi) { s->taken = 1; s->t = now(); s->device = &devices[i]; return OK; }
  return INVALID_ARGUMENT;
}
typedef struct { unsigned id; int code; double value; const char *short_name, *long_name, *unit; } GpmMetric;
typedef struct { unsigned version, n; GpmSample *first, *second; GpmMetric metrics[1]; } GpmMetrics;
int nvmlGpmMetricsGet(GpmMetrics *m) {
  ENTER(m->second ? m->second->device : NULL);
  if (m->version != 1) return VERSION_MISMATCH;
  if (!m->first || !m->second || !m->first->taken || !m->second->taken) return INVALID_ARGUMENT;
  for (unsigned i = 0; i < m->n; i++) {
    GpmMetric *one = &m->metrics[i]; char key[32]; snprintf(key, sizeof key, "gpm.%u", one->id);
    Series *s = find(m->second->device, key);
    double a = m->first->t, b = m->second->t;
    one->code = s ? OK : NOT_SUPPORTED;
    one->value = s ? (b - a < 0.1 ? NAN : integral(s, a, b) / (b - a)) : 0;
    for (int c = 0; c < n_gpm_codes; c++) if (gpm_codes[c].id == one->id) one->code = gpm_codes[c].code;
  }
  return OK;
}
