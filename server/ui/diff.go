package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
)

const (
	maxFiles  = 20_000  // maximum number of files in a difference
	diffPage  = 500     // maximum number of files on a page of a difference
	maxSide   = 1 << 20 // maximum size, in bytes, of a file that is compared
	openFiles = 12      // maximum number of differences that the script of the page expands automatically
)

// diffPageData shows the files that differ between two points.
type diffPageData struct {
	frame
	Path         string
	A, B         string // points as the user has named them; "" for a point that was named by its id
	Base, Head   string // ids of the two commits
	Rows         []changeRow
	Total        int
	Added, Gone  int // numbers of added and removed lines
	Truncated    bool
	First        int // index of the first file on the page
	Before, Next string
	Open         bool // the script of the page expands the differences when the page is loaded
	Unreadable   string
}

// changeRow is a file in the list of a difference.
type changeRow struct {
	Path, OldPath  string
	Status         string
	Added, Deleted int
	Binary         bool
	Lacking        bool   // true if the repository does not have the contents of both files
	Mode           string // old and new mode, as in "100644 → 100755"; "" if they are the same
	Link           string // path of the page with the difference of the file
}

// changeRow returns the row for a changed file. of is the session whose threads its difference shows; "" for none.
func (p *place) changeRow(d read.Diff, c read.Change, of string) changeRow {
	row := changeRow{Path: shown(c.Path), OldPath: shown(c.OldPath), Status: c.Status, Added: c.Additions,
		Deleted: c.Deletions,
		Binary:  c.Binary, Lacking: c.Lacking,
		Link: p.path + "/diff/file" + query("a", d.Base, "b", d.Head, "path", c.Path, "old", c.OldPath, "s", of)}
	if c.OldMode != c.NewMode && c.Status != "added" && c.Status != "deleted" {
		row.Mode = c.OldMode + " → " + c.NewMode
	}
	return row
}

// point returns the id of the commit that the name of a point stands for. The name is SESSION@CHECKPOINT, an id, HEAD,
// a branch or a tag.
func (p *place) point(ctx context.Context, g gitread.Repo, refs map[string]string, name string) (string, error) {
	if s, checkpoint := sessionlink.Split(name); s != "" && session.ValidName(s) == nil && refs[session.MetaRef(s)] != "" {
		return g.Checkpoint(ctx, refs, s, checkpoint)
	}
	return g.Resolve(ctx, name)
}

// diff lists the files that differ between two points.
func (p *place) diff(ctx context.Context) error {
	a, b := p.r.FormValue("a"), p.r.FormValue("b")
	if a == "" || b == "" {
		return &Problem{http.StatusBadRequest, "Which points?", "Name two points: ?a=POINT&b=POINT."}
	}
	first, err := strconv.Atoi(cmp.Or(p.r.FormValue("from"), "0"))
	if err != nil || first < 0 {
		return missing("The difference has no such page.")
	}
	page := diffPageData{frame: p.frame("Difference", p.within()...), Path: p.path, A: shown(a), B: shown(b), First: first}
	var d read.Diff
	of := "" // name of the session whose threads are shown
	err = p.readRefs(ctx, func(g gitread.Repo, refs map[string]string) error {
		of = p.sessionOf(refs, b, a)
		var err error
		if page.Base, err = p.point(ctx, g, refs, a); err != nil {
			return err
		}
		if page.Head, err = p.point(ctx, g, refs, b); err != nil {
			return err
		}
		d, err = g.Changes(ctx, page.Base, page.Head, maxFiles)
		if gitcmd.Exited(err, 128) && ctx.Err() == nil {
			page.Unreadable = lacksObjects
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if object.ValidID(a) { // not for an id, because the page shows the beginning of each id anyway
		page.A = ""
	}
	if object.ValidID(b) {
		page.B = ""
	}
	slices.SortStableFunc(d.Changes, func(a, b read.Change) int { return strings.Compare(a.Path, b.Path) })
	page.Total, page.Truncated = len(d.Changes), d.Truncated
	for i, c := range d.Changes {
		page.Added, page.Gone = page.Added+c.Additions, page.Gone+c.Deletions
		if i >= first && i < first+diffPage {
			page.Rows = append(page.Rows, p.changeRow(d, c, of))
		}
	}
	page.Open = page.Total <= openFiles
	here := func(from int) string {
		return p.path + "/diff" + query("a", a, "b", b, "from", strconv.Itoa(from), "s", p.r.FormValue("s"))
	}
	if first > 0 {
		page.Before = here(max(0, first-diffPage))
	}
	if first+diffPage < page.Total {
		page.Next = here(first + diffPage)
	}
	return p.send(http.StatusOK, "diff.html", page)
}

// filePage shows the difference of one file.
type filePage struct {
	frame
	Path, OldPath string
	Blocks        []block
	Note          string // reason why there are no blocks, or what they leave out
	OldTree       string // paths of the pages of the file at the two points; "" if the file does not exist at a point
	NewTree       string
	Comment       *commentForm // form for comments; nil if the page shows no session
	Threads       []threadView // threads that do not refer to a line in the difference
}

// block is a part of a difference that is shown side by side: lines of the old file, and the lines of the new file that
// replace them. For lines that did not change, both sides are the same.
type block struct {
	Skip     int // number of lines before the block that are not shown
	Same     bool
	Old, New template.HTML
	Threads  []threadView // threads about the last new line of the block
	Gone     []threadView // threads about the last old line, if the new file does not have this line
}

// fileDiff shows the difference of one file.
func (p *place) fileDiff(ctx context.Context) error {
	a, b, name := p.r.FormValue("a"), p.r.FormValue("b"), p.r.FormValue("path")
	old := firstOf(p.r.FormValue("old"), name)
	if !object.ValidID(a) || !object.ValidID(b) || name == "" {
		return missing("There is no such difference.")
	}
	above := crumb{"Difference", p.path + "/diff" + query("a", a, "b", b, "s", p.r.FormValue("s"))}
	page := filePage{frame: p.frame(path.Base(name), append(p.within(), above)...), Path: shown(name), OldPath: shown(old)}
	err := p.readRefs(ctx, func(g gitread.Repo, refs map[string]string) error {
		var sides [2]read.Content
		err := g.Contents(ctx, []string{a + ":" + old, b + ":" + name}, maxSide, func(i int, c read.Content) { sides[i] = c })
		if err != nil {
			return err
		}
		lacks := false // true if a file exists but the repository does not have its contents
		for i, at := range [2][2]string{{a, old}, {b, name}} {
			if sides[i].ID != "" {
				continue
			}
			missing, err := g.Lacks(ctx, at[0], at[1])
			if err != nil {
				return err
			}
			lacks = lacks || missing
		}
		if sides[0].ID == "" && sides[1].ID == "" && !lacks {
			return read.ErrNotFound
		}
		if sides[0].ID != "" {
			page.OldTree = p.treePath(a, old) + query("s", p.r.FormValue("s"))
		}
		if sides[1].ID != "" {
			page.NewTree = p.treePath(b, name) + query("s", p.r.FormValue("s"))
		}
		if lacks {
			page.Note = lacksObjects
			return nil
		}
		l, err := p.newLocator(ctx, g, refs, p.sessionOf(refs))
		if err != nil {
			return err
		}
		threads, err := l.bothSides(ctx, g, [2]string{a, b}, [2]string{old, name}, sides)
		if err != nil {
			return err
		}
		if sides[1].ID != "" {
			page.Comment, err = l.form(ctx, g, b, name)
		} else {
			page.Comment, err = l.form(ctx, g, a, old)
		}
		if err != nil {
			return err
		}
		return page.compare(ctx, g, sides, [2]string{old, name}, threads)
	})
	if err != nil {
		return err
	}
	if p.r.FormValue("part") == "file" {
		return p.send(http.StatusOK, "blocks", page)
	}
	return p.send(http.StatusOK, "file.html", page)
}

// bothSides finds the threads in the two files of a difference. commits and paths name the files. A file that does not
// exist has no id.
func (l *locator) bothSides(ctx context.Context, g gitread.Repo, commits, paths [2]string, sides [2]read.Content) (
	found [2]inFile, err error) {
	for i := range sides {
		if sides[i].ID == "" {
			continue
		}
		if found[i], err = l.in(ctx, g, commits[i], paths[i]); err != nil {
			return found, err
		}
	}
	return found, nil
}

// compare adds the blocks of the difference of two files, with the threads about them. A file that does not exist has
// no id.
func (f *filePage) compare(ctx context.Context, g gitread.Repo, sides [2]read.Content, paths [2]string,
	threads [2]inFile) error {
	assign(&threads[0], &threads[1])
	f.Threads = slices.Concat(threads[1].below, threads[0].below)
	for _, s := range sides {
		switch {
		case s.ID != "" && s.Type != "blob":
			f.Note = "This is a " + s.Type + ", not a file."
		case s.Size > maxSide:
			f.Note = "The file has " + size(s.Size) + ", which is too much for this page."
		case binary(s.Bytes):
			f.Note = "The file is binary."
		default:
			continue
		}
		f.Threads = append(f.Threads, append(threads[1].lines, threads[0].lines...)...)
		return nil
	}
	before, after := highlight(ctx, paths[0], sides[0].Bytes), highlight(ctx, paths[1], sides[1].Bytes)
	var runs []read.Run
	var cut bool
	switch {
	case sides[0].ID == sides[1].ID:
		f.Note = "The contents are the same."
	case sides[0].ID == "" || sides[1].ID == "":
		runs = []read.Run{{Gone: len(before), Came: len(after)}}
	default:
		var err error
		if runs, cut, err = g.Runs(ctx, sides[0].ID, sides[1].ID); err != nil {
			return fmt.Errorf("compare %q: %w", paths[1], err)
		}
	}
	if cut {
		f.Note = "The difference is too large for this page; its end is missing."
	}
	oldEnds, newEnds := threads[0].byEnd(len(before)), threads[1].byEnd(len(after))
	total := len(after)
	if cut || sides[1].ID == "" {
		total = 0
	}
	for _, r := range divide(reach(runs, newEnds, total), oldEnds, newEnds) {
		if r.Old < 0 || r.New < 0 || r.Old+r.Gone > len(before) || r.New+r.Came > len(after) {
			return errors.New("compare files: git has reported lines that the files do not have")
		}
		b := block{Skip: r.Skip, Same: r.Same, Old: lines("del", r.Same, before[r.Old:r.Old+r.Gone], r.Old),
			New: lines("ins", r.Same, after[r.New:r.New+r.Came], r.New)}
		if r.Gone > 0 {
			b.Gone = take(oldEnds, r.Old+r.Gone)
		}
		if r.Came > 0 {
			b.Threads = take(newEnds, r.New+r.Came)
		}
		f.Blocks = append(f.Blocks, b)
	}
	f.Threads = slices.Concat(threads[1].below, threads[0].below, rest(newEnds), rest(oldEnds))
	return nil
}

// lines returns lines of code as HTML, with their numbers. mark is the HTML element of changed lines; unchanged lines
// (same) have none.
func lines(mark string, same bool, code []string, first int) template.HTML {
	if same {
		mark = "span"
	}
	var b strings.Builder
	for i, text := range code {
		b.WriteString("<" + mark + ` data-n="` + strconv.Itoa(first+i+1) + `">` + text + "</" + mark + ">\n")
	}
	return template.HTML(b.String()) // the text is safe, because highlight has escaped the code
}
