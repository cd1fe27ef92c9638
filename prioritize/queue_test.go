package prioritize

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// naive is the queue as one would explain it: a list that is searched and sorted.
type naive struct {
	list   []naiveWant
	pushes int
}

type naiveWant struct {
	Want
	pushed int
}

func (n *naive) find(w Want) int {
	return slices.IndexFunc(n.list, func(x naiveWant) bool { return x.ID == w.ID })
}

func (n *naive) push(w Want) {
	if w.Class > Last {
		w.Class = Last
	}
	if i := n.find(w); i >= 0 {
		if w.Class < n.list[i].Class {
			n.list[i].Want = w
		}
		return
	}
	n.pushes++
	n.list = append(n.list, naiveWant{w, n.pushes})
}

func (n *naive) sort() {
	slices.SortFunc(n.list, func(a, b naiveWant) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(rank(a.Class, a.Path), rank(b.Class, b.Path)),
			cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.pushed, b.pushed))
	})
}

func (n *naive) take(worst Class, count int) []Want {
	n.sort()
	var out []Want
	for len(out) < count && len(n.list) > 0 && n.list[0].Class <= worst {
		out = append(out, n.list[0].Want)
		n.list = n.list[1:]
	}
	return out
}

// TestQueueAgainstNaive does random operations on the queue and on a sorted list.
func TestQueueAgainstNaive(t *testing.T) {
	paths := []string{"", "a", "go.mod", "go.sum", "a/b.c", "a/b/c.go", "a/b/c.css", "x/y/z/w.py", "docs/a.md", "l.png",
		"d/e/f/g/h/i.png"}
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		q, model := NewQueue(), &naive{}
		ids := 1 + rng.Uint64N(200)
		anyClass := func() Class { return Class(rng.IntN(classes + 1)) } // one too many
		for step := range 1500 {
			w := Want{ID: numberedID(rng.Uint64N(ids)), Class: anyClass(), Path: paths[rng.IntN(len(paths))],
				Seq: rng.Uint64N(20)}
			at := fmt.Sprintf("seed %d, step %d", seed, step)
			switch rng.IntN(8) {
			case 0:
				i := model.find(w)
				if got := q.Raise(w.ID, w.Class); got != (i >= 0) {
					t.Fatalf("%s: Raise: %v", at, got)
				}
				if i >= 0 {
					model.list[i].Class = min(model.list[i].Class, w.Class)
				}
			case 1:
				i := model.find(w)
				if got := q.Drop(w.ID); got != (i >= 0) {
					t.Fatalf("%s: Drop: %v", at, got)
				}
				if i >= 0 {
					model.list = slices.Delete(model.list, i, i+1)
				}
			case 2:
				worst, n := anyClass(), rng.IntN(12)
				if got, want := q.Take(worst, n), model.take(worst, n); !slices.Equal(got, want) {
					t.Fatalf("%s: Take(%s, %d):\n%v\nwant\n%v", at, worst, n, got, want)
				}
			default:
				q.Push(w)
				model.push(w)
			}
			compare(t, at, q, model)
		}
		if got, want := q.Take(Last, 1<<30), model.take(Last, 1<<30); !slices.Equal(got, want) {
			t.Fatalf("seed %d: what is left:\n%v\nwant\n%v", seed, got, want)
		}
	}
}

func compare(t *testing.T, at string, q *Queue, model *naive) {
	t.Helper()
	model.sort()
	if q.Len() != len(model.list) {
		t.Fatalf("%s: Len is %d, want %d", at, q.Len(), len(model.list))
	}
	best, ok := q.Best()
	if ok != (len(model.list) > 0) || ok && best != model.list[0].Class {
		t.Fatalf("%s: Best is %s, %v", at, best, ok)
	}
	byClass := map[Class]int{}
	for _, w := range model.list {
		byClass[w.Class]++
	}
	got := q.LenClass()
	if len(got) != len(byClass) {
		t.Fatalf("%s: LenClass is %v, want %v", at, got, byClass)
	}
	for c, n := range byClass {
		if got[c] != n {
			t.Fatalf("%s: LenClass is %v, want %v", at, got, byClass)
		}
	}
}

func TestAWaitedForWantOvertakes(t *testing.T) {
	q := NewQueue()
	for n := range uint64(1000) {
		q.Push(Want{ID: numberedID(n), Class: Source, Path: "a/b.c", Seq: n})
	}
	q.Raise(numberedID(777), Waiting)
	q.Raise(numberedID(778), Sibling)
	q.Push(Want{ID: numberedID(5000), Class: Waiting, Path: "big.zip", Seq: 5000})
	q.Raise(numberedID(777), Media) // raising never lowers
	got := q.Take(Sibling, 100)
	if len(got) != 3 || got[0].ID != numberedID(777) || got[1].ID != numberedID(5000) || got[2].ID != numberedID(778) {
		t.Errorf("taken: %v", got)
	}
	if got := q.Take(Manifest, 100); got != nil {
		t.Errorf("taken though less urgent: %v", got)
	}
}

// BenchmarkQueue pushes and takes 100,000 wants.
func BenchmarkQueue(b *testing.B) {
	const count = 100_000
	wants := make([]Want, count)
	rng := rand.New(rand.NewPCG(9, 9))
	for n := range wants {
		wants[n] = Want{ID: numberedID(rng.Uint64()), Class: Manifest + Class(rng.IntN(classes-int(Manifest))),
			Path: "packages/api/src/server.ts", Seq: uint64(n)}
	}
	for b.Loop() {
		before := heapInUse()
		q := NewQueue()
		for _, w := range wants {
			q.Push(w)
		}
		b.ReportMetric(float64(heapInUse()-before)/count, "heap-B/want")
		for q.Len() > 0 {
			q.Take(Last, 400)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/count, "ns/push+take")
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
