package hostui

import (
	"fmt"
	"math"
	"path"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/fetchmap"
	"github.com/artifactfs/artifactfs/host/hostui/treemap"
	"github.com/artifactfs/artifactfs/server/ui"
)

// view is the data that a live page shows: figures, the treemap, and a table. The first view is part of the page; a
// script replaces it by later ones.
type view struct {
	Figures  []figure `json:"figures"`
	Boxes    []box    `json:"boxes"`
	Rows     []row    `json:"rows"`
	Counting bool     `json:"counting,omitempty"` // whether the files are being counted for the first time
	Problem  string   `json:"problem,omitempty"`
	Requests float64  `json:"requests"` // requests per second, for the chart
	Received float64  `json:"received"` // bytes per second
}

// figure is a number on a live page, with its name.
type figure struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Text string `json:"text"`
}

// box is a rectangle of the treemap, in pixels. It stands for a directory. A group contains the boxes that follow it
// and lie in it.
type box struct {
	Key     string  `json:"key"` // path of the directory; unique in a view
	X       float64 `json:"x"`
	Y       float64 `json:"y"`
	W       float64 `json:"w"`
	H       float64 `json:"h"`
	Group   bool    `json:"group,omitempty"`
	Label   string  `json:"label,omitempty"` // name of the directory, cut to the width of the box
	Title   string  `json:"title"`
	Fetched float64 `json:"fetched"`        // height of the part that stands for fetched files
	Coming  float64 `json:"coming"`         // height of the part that stands for files that are being fetched
	Heat    int     `json:"heat"`           // level of the request rate, from 0 (no requests) to 4
	Link    string  `json:"link,omitempty"` // path of the page of the directory
}

// FetchedY returns the y coordinate of the upper edge of the part that stands for fetched files.
func (b box) FetchedY() float64 { return rounded(b.Y + b.H - b.Fetched) }

// ComingY returns the upper end of the part for files that are being fetched.
func (b box) ComingY() float64 { return rounded(b.FetchedY() - b.Coming) }

// TextX returns the left end of the label.
func (b box) TextX() float64 { return rounded(b.X + 4) }

// TextY returns the base line of the label.
func (b box) TextY() float64 { return rounded(b.Y + 13) }

// row is a line of the table on a live page, which describes a subdirectory of the shown directory.
type row struct {
	Key      string `json:"key"`
	Name     string `json:"name"`
	Link     string `json:"link,omitempty"`
	Files    string `json:"files"`
	Fetched  string `json:"fetched"`
	Fetching string `json:"fetching"`
	Size     string `json:"size"`
	Requests string `json:"requests"`
	Waited   string `json:"waited"`
}

const (
	letterWidth = 7.0  // minimum width of a letter in pixels
	header      = 18.0 // height of the label of a group in pixels
	gap         = 2.0
	leastBox    = 3.0 // minimum length of the sides of a box that is drawn
	minBoxSide  = 46  // minimum length of the sides of a box that is divided into the boxes of its directories
)

// heatOf contains the numbers of requests per second from which the field Heat of a box is 1, 2, 3 or 4.
var heatOf = [...]float64{0.001, 10, 100, 1000}

// view returns the view that a live page shows of the sample s.
func (r request) view(s sample) view {
	v := view{Counting: !s.Known && s.Problem == "", Problem: s.Problem}
	seconds := max(s.Seconds, 0.001)
	v.Requests, v.Received = rounded(float64(s.Requests)/seconds), rounded(s.Received)
	v.Figures = figuresOf(s, seconds)
	if !s.Known {
		return v
	}
	d := drawing{r: r, seconds: seconds}
	d.draw(s.Tree, r.path, treemap.Rect{W: r.width, H: r.height})
	v.Boxes = d.boxes
	for _, below := range s.Tree.Dirs {
		v.Rows = append(v.Rows, d.row(below))
	}
	if len(s.Tree.Dirs) == 0 {
		own := s.Tree
		own.Own = true
		v.Rows = append(v.Rows, d.row(own))
	}
	return v
}

// figuresOf returns the numbers that a live page shows beside the treemap. The sample covers the given number of
// seconds.
func figuresOf(s sample, seconds float64) []figure {
	per := func(n float64) string { return perSecond(n) + "/s" }
	state := string(s.Status.State)
	if s.Status.Error != "" && s.Status.State == control.StateDegraded {
		state += ": " + s.Status.Error
	}
	hits := "none"
	if s.Reads > 0 {
		hits = fmt.Sprintf("%d %%", s.Hits*100/s.Reads)
	}
	fetched := share(s.Tree.Fetched, s.Tree.Files) + " of " + ui.Count(s.Tree.Files) + " files"
	if s.Tree.Unlisted {
		fetched += " so far"
	}
	return []figure{
		{"fetched", "Fetched", fetched},
		{"requests", "Requests of programs", per(float64(s.Requests) / seconds)},
		{"waited", "of these, waited for the remote", per(float64(s.Waited) / seconds)},
		{"pending", "Waiting now", ui.Count(s.Status.Operations.Pending)},
		{"hits", "Reads from this host", hits},
		{"read", "Read by programs", ui.Size(int64(float64(s.ReadBytes)/seconds)) + "/s"},
		{"fetches", "Requests to the remote", per(s.Fetches)},
		{"blobs", "Blobs received", per(s.Blobs)},
		{"received", "Bytes received", ui.Size(int64(s.Received)) + "/s"},
		{"queue", "Queued", ui.Count(s.Status.Queue.Foreground) + " for readers, " +
			ui.Count(s.Status.Queue.Background) + " ahead"},
		{"state", "State", state},
	}
}

// perSecond returns a rate as text, with one decimal if it is small.
func perSecond(n float64) string {
	if n > 0 && n < 9.95 {
		return fmt.Sprintf("%.1f", n)
	}
	return ui.Count(int64(math.Round(n)))
}

// share returns n in per cent of the number of, rounded down so that 100 % means all.
func share(n, of int64) string {
	if of == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%d %%", n*100/of)
}

func rounded(f float64) float64 { return math.Round(f*10) / 10 }

// drawing creates the boxes of a treemap.
type drawing struct {
	r       request
	seconds float64
	boxes   []box
}

// pathOf returns the path of the directory d, whose parent has the path above. For entries that are no single
// directory, it is a unique key.
func pathOf(above string, d fetchmap.MapDir) string {
	switch {
	case d.Own:
		return path.Join(above, "*")
	case d.More > 0:
		return path.Join(above, "**")
	}
	return path.Join(above, d.Name)
}

// nameOf returns the label of a directory in the treemap.
func nameOf(d fetchmap.MapDir) string {
	switch {
	case d.Own:
		return "(its files)"
	case d.More > 0:
		return "(" + ui.Count(int64(d.More)) + " more)"
	}
	return d.Name
}

// link returns the URL path of the live page of the directory m, whose path is at, or "" for an entry that is no single
// directory.
func (d *drawing) link(m fetchmap.MapDir, at string) string {
	if m.Own || m.More > 0 || m.Name == "" {
		return ""
	}
	return liveURL(d.r.mount, at, d.r.bytes)
}

// draw adds the boxes of the directory m, whose path is at, in the rectangle in: a single box, or a group with the
// boxes of its directories.
func (d *drawing) draw(m fetchmap.MapDir, at string, in treemap.Rect) {
	if in.W < leastBox || in.H < leastBox {
		return
	}
	root := len(d.boxes) == 0
	if len(m.Dirs) == 0 || !root && (in.W < minBoxSide || in.H < minBoxSide) {
		d.leaf(m, at, in)
		return
	}
	inner := in
	if !root {
		d.boxes = append(d.boxes, d.box(m, at, in))
		last := &d.boxes[len(d.boxes)-1]
		last.Group, last.Heat = true, 0
		inner = in.Inset(gap, header)
	} else {
		d.boxes = append(d.boxes, box{}) // a place for the first box, which is not drawn
	}
	weights := make([]float64, len(m.Dirs))
	for i := range m.Dirs {
		weights[i] = float64(m.Dirs[i].Weight(d.r.bytes))
	}
	for i, r := range treemap.Layout(weights, inner) {
		below := m.Dirs[i]
		d.draw(below, pathOf(at, below), r.Inset(gap/2, gap/2))
	}
	if root {
		d.boxes = d.boxes[1:]
	}
}

// leaf adds a single box for the directory m, with parts for the files that are fetched and for those that are being
// fetched.
func (d *drawing) leaf(m fetchmap.MapDir, at string, in treemap.Rect) {
	b := d.box(m, at, in)
	if m.Files > 0 {
		b.Fetched = rounded(in.H * float64(m.Fetched) / float64(m.Files))
		b.Coming = rounded(in.H * float64(m.Fetching) / float64(m.Files))
	}
	d.boxes = append(d.boxes, b)
}

// box returns a box for the directory m, whose path is at, in the rectangle in.
func (d *drawing) box(m fetchmap.MapDir, at string, in treemap.Rect) box {
	b := box{Key: at, X: rounded(in.X), Y: rounded(in.Y), W: rounded(in.W), H: rounded(in.H), Link: d.link(m, at)}
	if room := int((in.W - 6) / letterWidth); room >= 3 && in.H >= header {
		b.Label = cut(nameOf(m), room)
	}
	rate := float64(m.Requests) / d.seconds
	for i, from := range heatOf {
		if rate >= from {
			b.Heat = i + 1
		}
	}
	name := at
	if m.Own || m.More > 0 {
		name = path.Join(path.Dir("/" + at)[1:], nameOf(m))
	}
	b.Title = fmt.Sprintf("%s: %s of %s files fetched, %s being fetched, %s requests/s", name, ui.Count(m.Fetched),
		ui.Count(m.Files),
		ui.Count(m.Fetching), perSecond(rate))
	return b
}

// cut returns text if it has at most n letters. Otherwise it returns the first n-1 letters and an ellipsis.
func cut(text string, n int) string {
	letters := []rune(text)
	if len(letters) <= n {
		return text
	}
	return string(letters[:n-1]) + "…"
}

// row returns the line of the table for the directory m.
func (d *drawing) row(m fetchmap.MapDir) row {
	at := pathOf(d.r.path, m)
	r := row{Key: at, Name: nameOf(m), Link: d.link(m, at), Files: ui.Count(m.Files),
		Fetched: ui.Count(m.Fetched) + " (" + share(m.Fetched, m.Files) + ")", Fetching: ui.Count(m.Fetching),
		Size:     ui.Size(m.Bytes),
		Requests: perSecond(float64(m.Requests) / d.seconds), Waited: perSecond(float64(m.Waited) / d.seconds)}
	if m.Unlisted {
		r.Files += " and more"
	}
	return r
}
