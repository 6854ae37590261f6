#include <stdio.h>
#define SQUARE(x) ((x) * (x))
struct point { int x; int (*move)(int); };
typedef struct { int a; } pair;
typedef int (*compare)(const void *, const void *);
enum kind { ONE };
union word { int whole; };
static struct point *make(int x)
{
    struct point local;
    int inner(void);
    return &local;
}
void (*handler(int signal))(int) { return 0; }
int prototype(int a);
struct point origin;
static int (*table[])(int) = { 0 };
