package treemap

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6*(1+math.Abs(a)+math.Abs(b)) }

// TestLayoutOfThePaper checks the example of the paper that describes the algorithm: areas 6 6 4 3 2 2 1 in a rectangle
// of 6 by 4.
func TestLayoutOfThePaper(t *testing.T) {
	got := Layout([]float64{6, 6, 4, 3, 2, 2, 1}, Rect{0, 0, 6, 4})
	want := []Rect{{0, 0, 3, 2}, {0, 2, 3, 2}, {3, 0, 12. / 7, 7. / 3}, {3 + 12./7, 0, 9. / 7, 7. / 3},
		{3, 7. / 3, 1.2, 5. / 3}, {4.2, 7. / 3, 1.2, 5. / 3},
		{5.4, 7. / 3, 0.6, 5. / 3}}
	for i := range want {
		g, w := got[i], want[i]
		if !near(g.X, w.X) || !near(g.Y, w.Y) || !near(g.W, w.W) || !near(g.H, w.H) {
			t.Errorf("rectangle %d: got %v, want %v", i, g, w)
		}
	}
}

// TestLayoutFillsTheRectangle checks that rectangles have areas in proportion to their weights, stay inside, do not
// overlap, and are not too narrow.
func TestLayoutFillsTheRectangle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		in := Rect{r.Float64() * 10, r.Float64() * 10, 1 + r.Float64()*1000, 1 + r.Float64()*1000}
		weights := make([]float64, 1+r.IntN(60))
		total := 0.0
		for i := range weights {
			weights[i] = math.Exp(r.Float64() * 6)
			total += weights[i]
		}
		slices.SortFunc(weights, func(a, b float64) int { return int(math.Copysign(1, b-a)) })
		rects := Layout(weights, in)
		for i, a := range rects {
			if want := weights[i] / total * in.W * in.H; !near(a.W*a.H, want) {
				t.Fatalf("round %d: area %d: got %v, want %v", round, i, a.W*a.H, want)
			}
			if a.X < in.X-1e-6 || a.Y < in.Y-1e-6 || a.X+a.W > in.X+in.W+1e-6 || a.Y+a.H > in.Y+in.H+1e-6 {
				t.Fatalf("round %d: %v is outside of %v", round, a, in)
			}
			for _, b := range rects[:i] {
				if min(a.X+a.W, b.X+b.W)-max(a.X, b.X) > 1e-6 && min(a.Y+a.H, b.Y+b.H)-max(a.Y, b.Y) > 1e-6 {
					t.Fatalf("round %d: %v and %v overlap", round, a, b)
				}
			}
		}
	}
}

func TestLayoutOfNothing(t *testing.T) {
	for _, weights := range [][]float64{nil, {0}, {0, 0}, {-1}, {math.Inf(-1), 0}} {
		for _, r := range Layout(weights, Rect{0, 0, 10, 10}) {
			if r != (Rect{}) {
				t.Errorf("rectangle of %v: got %v", weights, r)
			}
		}
	}
	if got := Layout([]float64{3, 1}, Rect{0, 0, 0, 10}); got[0] != (Rect{}) {
		t.Errorf("rectangle without a width: got %v", got)
	}
	got := Layout([]float64{4, 0, -3}, Rect{0, 0, 10, 10})
	if got[0] != (Rect{0, 0, 10, 10}) || got[1].W*got[1].H != 0 || got[2].W*got[2].H != 0 {
		t.Errorf("rectangles of 4, 0 and -3: got %v", got)
	}
	if got := (Rect{0, 0, 3, 3}).Inset(2, 10); got.W != 0 || got.H != 0 {
		t.Errorf("inside of a small rectangle: got %v", got)
	}
}
