// Package treemap divides a rectangle into rectangles with given areas whose sides are about as long as each other, by
// the algorithm of Bruls, Huizing and van Wijk ("Squarified treemaps", 2000).
package treemap

import "slices"

// Rect is a rectangle; y grows downwards.
type Rect struct{ X, Y, W, H float64 }

// Inset returns the rectangle inside of r that keeps the distance margin from the left, right and lower side, and top
// from the upper side. Its sides are not negative.
func (r Rect) Inset(margin, top float64) Rect {
	return Rect{r.X + margin, r.Y + top, max(0, r.W-2*margin), max(0, r.H-top-margin)}
}

// Layout divides the rectangle in. It returns a rectangle for each weight, in the order of the weights, whose area is
// proportional to the weight. Weights should not increase; a weight that is not positive gets an empty rectangle.
func Layout(weights []float64, in Rect) []Rect {
	rects := make([]Rect, len(weights))
	total := 0.0
	for _, w := range weights {
		total += max(0, w)
	}
	if total <= 0 || in.W <= 0 || in.H <= 0 {
		return rects
	}
	areas := slices.Clone(weights)
	for i, w := range weights {
		areas[i] = max(0, w) * in.W * in.H / total
	}
	for from := 0; from < len(areas); {
		side := min(in.W, in.H)
		to, sum := from+1, areas[from]
		for to < len(areas) && worst(areas[from:to+1], sum+areas[to], side) <= worst(areas[from:to], sum, side) {
			sum += areas[to]
			to++
		}
		in = place(rects[from:to], areas[from:to], sum, in)
		from = to
	}
	return rects
}

// worst returns the greatest ratio of two sides of a rectangle, if rectangles with the given areas, whose sum is sum,
// are placed in a row along a side with the length side.
func worst(areas []float64, sum, side float64) float64 {
	if sum <= 0 || side <= 0 {
		return 0
	}
	most, least := slices.Max(areas), slices.Min(areas)
	if least <= 0 {
		return 1e18
	}
	return max(side*side*most/(sum*sum), sum*sum/(side*side*least))
}

// place computes the rectangles of a row of areas along the shorter side of the rectangle in, and returns the rest of
// in.
func place(rects []Rect, areas []float64, sum float64, in Rect) Rect {
	if in.W >= in.H { // a column at the left
		width, y := 0.0, in.Y
		if in.H > 0 {
			width = min(sum/in.H, in.W)
		}
		for i, a := range areas {
			h := 0.0
			if sum > 0 {
				h = in.H * a / sum
			}
			rects[i] = Rect{in.X, y, width, h}
			y += h
		}
		return Rect{in.X + width, in.Y, in.W - width, in.H}
	}
	height, x := 0.0, in.X
	if in.W > 0 {
		height = min(sum/in.W, in.H)
	}
	for i, a := range areas {
		w := 0.0
		if sum > 0 {
			w = in.W * a / sum
		}
		rects[i] = Rect{x, in.Y, w, height}
		x += w
	}
	return Rect{in.X, in.Y + height, in.W, in.H - height}
}
