package ui

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
)

const (
	maxAnnotations = 2 * annotate.MaxFile // maximum size, in bytes, of a file of annotations that is read
	maxThreads     = 500                  // maximum number of threads of a session on a page, the newest ones
	// maximum number of threads in the panel of a session; the others are shown at their checkpoints and files
	panelThreads = 60
	findTime     = 3 * time.Second // maximum time to find the places of all threads of a file
)

// threadView is a thread of annotations.
type threadView struct {
	ID, Session string
	Resolved    bool
	Place       string // object to which the thread refers, such as "src/main.c:3-4"
	Link        string // path of the page that shows this object; "" for the session
	Was         string // place at which the thread began, if it has moved; otherwise ""
	State       string // "outdated" or "unknown" if the place is not in the files that the page shows; otherwise ""
	Quote       string
	Acts        []actView
	Do          *doing

	on        annotate.Place
	line, end int // first and last line in the file that the page shows, counted from 1; 0 for the whole file
}

// actView is one act of a thread.
type actView struct {
	Actor string
	Verb  string // word for the act if it is not a comment: "resolved" or "reopened"; otherwise ""
	Text  string
	Time  time.Time
}

// threads reads the threads of a session, the oldest first.
func (p *place) threads(ctx context.Context, g gitread.Repo, refs map[string]string, name string,
	do *doing) ([]threadView, error) {
	commit := refs[session.AnnotationsRef(name)]
	if commit == "" {
		return nil, nil
	}
	var file []byte
	err := g.Contents(ctx, []string{commit + ":" + annotate.LogFile}, maxAnnotations,
		func(_ int, c read.Content) { file = c.Bytes })
	if err != nil {
		return nil, fmt.Errorf("read annotations: %w", err)
	}
	all := annotate.Threads(annotate.Parse(file))
	all = all[max(0, len(all)-maxThreads):]
	views := make([]threadView, 0, len(all))
	for _, t := range all {
		views = append(views, p.threadView(name, t))
		views[len(views)-1].Do = do
	}
	return views, nil
}

// verbs are the words for acts that are not comments.
var verbs = map[annotate.Op]string{annotate.Resolve: "resolved", annotate.Reopen: "reopened"}

// threadView returns a thread at the place where it began.
func (p *place) threadView(name string, t annotate.Thread) threadView {
	v := threadView{ID: t.ID, Session: name, Resolved: t.Resolved, Quote: clip(t.On.Quote, 500), on: t.On, line: t.On.Line,
		end: t.On.End}
	point := firstOf(t.On.Commit, name+"@"+t.On.Checkpoint)
	switch {
	case t.On.Path != "":
		v.Place, v.Link = placeText(t.On.Path, t.On.Line, t.On.End), p.treePath(point, t.On.Path)+query("s", name)
		if t.On.Line > 0 {
			v.Link += fmt.Sprintf("#L%d", t.On.Line)
		}
	case t.On.Commit != "":
		v.Place, v.Link = "commit "+short(t.On.Commit), p.sessionPath(name)+query("at", t.On.Commit)
	case t.On.Checkpoint != "":
		v.Place, v.Link = "checkpoint "+t.On.Checkpoint, p.sessionPath(name)+query("at", t.On.Checkpoint)
	default:
		v.Place = "the session"
	}
	for _, a := range t.Acts {
		v.Acts = append(v.Acts, actView{Actor: clip(a.Actor, 80), Verb: verbs[a.Op], Text: shown(a.Text), Time: a.Time})
	}
	return v
}

// placeText returns a path with the numbers of lines, as in "main.c:3-4".
func placeText(path string, line, end int) string {
	text := shown(path)
	if line > 0 {
		text += fmt.Sprintf(":%d", line)
	}
	if end > line {
		text += fmt.Sprintf("-%d", end)
	}
	return text
}

// sessionOf returns the session whose threads are shown beside files at the given points: the one in the parameter s of
// the request, or otherwise the first one that a point names. It returns "" if there is none.
func (p *place) sessionOf(refs map[string]string, points ...string) string {
	names := []string{p.r.FormValue("s")}
	for _, point := range points {
		name, _ := sessionlink.Split(point)
		names = append(names, name)
	}
	for _, name := range names {
		if name != "" && session.ValidName(name) == nil && refs[session.MetaRef(name)] != "" {
			return name
		}
	}
	return ""
}

// addThreads adds the threads about the selected entry and its files to the panel.
func (c *cursorPanel) addThreads(all []threadView) {
	for _, t := range all {
		if t.on.Commit == c.ID || t.on.Commit == "" && t.on.Checkpoint == c.ID {
			c.Threads = append(c.Threads, t)
		}
	}
}

// addForms adds the forms for the selected entry to the panel. pins are the names of checkpoints by their commits.
func (c *cursorPanel) addForms(do *doing, pins map[string][]string) {
	c.Do, c.Pins = do, pins[c.commit]
	c.Comment = &commentForm{Do: do, Label: "Comment on this " + c.Kind, Checkpoint: c.ID}
	if c.Kind == "commit" {
		c.Comment.Checkpoint, c.Comment.Commit = "", c.ID
	}
}

// countThreads sets the number of threads of each entry of a timeline: those about the checkpoint or commit, and about
// files in it.
func countThreads(list []entry, all []threadView) {
	counts := map[string]int{}
	for _, t := range all {
		counts[firstOf(t.on.Commit, t.on.Checkpoint)]++
	}
	for i := range list {
		if e := &list[i]; e.Kind == "checkpoint" || e.Kind == "commit" {
			e.Threads = counts[e.ID]
		}
	}
}

// inFile contains the threads about one file at a point.
type inFile struct {
	lines []threadView // threads about lines that the file has, in no particular order
	below []threadView // threads about the whole file, or about lines that the file does not have any more
}

// locator finds threads in the files of commits.
type locator struct {
	name    string // name of the session; "" for none
	do      *doing
	threads []threadView
	files   *gitread.Annotated
}

// newLocator reads the threads of a session. If name is "", there are no threads.
func (p *place) newLocator(ctx context.Context, g gitread.Repo, refs map[string]string, name string) (*locator, error) {
	if name == "" {
		return &locator{}, nil
	}
	l := &locator{name: name, do: p.doing(refs, name)}
	if refs[session.AnnotationsRef(name)] == "" {
		return l, nil
	}
	var err error
	if l.threads, err = p.threads(ctx, g, refs, name, l.do); err != nil {
		return nil, err
	}
	metas, err := g.Metas(ctx, refs, []string{name})
	if err != nil {
		return nil, err
	}
	base := ""
	if metas[0] != nil && object.ValidID(metas[0].Base) {
		base = metas[0].Base
	}
	l.files = gitread.NewAnnotated(g, base)
	return l, nil
}

// form returns the form for comments on a file of a commit, or nil if the page shows no session. If a checkpoint of the
// session stores the commit, the form names the checkpoint instead of the commit.
func (l *locator) form(ctx context.Context, g gitread.Repo, commit, path string) (*commentForm, error) {
	if l.name == "" {
		return nil, nil
	}
	f := &commentForm{Do: l.do, Label: "Comment on this file", Commit: commit, Path: path, Lines: true}
	if !l.do.Comment {
		return f, nil
	}
	err := g.Contents(ctx, []string{commit}, maxCommit, func(_ int, c read.Content) {
		if p, err := gitread.CheckpointOf(c); err == nil && p.Session == l.name {
			f.Checkpoint, f.Commit = string(p.ID), ""
		}
	})
	return f, err
}

// in finds the threads about the file at path in a commit. It searches for at most findTime; the places of further
// threads are unknown.
func (l *locator) in(ctx context.Context, g gitread.Repo, commit, path string) (inFile, error) {
	var found inFile
	if len(l.threads) == 0 {
		return found, nil
	}
	root, err := g.Stat(ctx, commit, "")
	if err != nil {
		return found, err
	}
	tree, err := object.ParseID(root.ID)
	if err != nil {
		return found, err
	}
	limited, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	for _, t := range l.threads {
		if t.on.Path == "" {
			continue
		}
		if t.on.Path != path {
			if e, err := l.files.Entry(limited, tree, t.on.Path); err == nil && e.Mode.IsBlob() {
				continue // skip the thread, because it refers to another file
			}
		}
		now, err := annotate.Where(limited, l.files, t.on, tree)
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if err != nil { // objects are missing, or the thread refers to objects that are not those of a file
			now = annotate.Now{State: annotate.Unknown, Path: t.on.Path}
		}
		if now.Path != path {
			continue
		}
		if t.line, t.end = now.Line, now.End; now.State == annotate.Outdated || now.State == annotate.Unknown {
			t.State = string(now.State)
		} else if is := placeText(path, now.Line, now.End); is != t.Place {
			t.Was, t.Place = t.Place, is
		}
		if t.line > 0 {
			t.Quote = "" // the quotation is not needed, because the page shows the line itself
			found.lines = append(found.lines, t)
		} else {
			found.below = append(found.below, t)
		}
	}
	return found, nil
}

// byEnd returns threads about lines by the number of their last line. Threads about lines after line count, the last
// one of the file, are added to f.below.
func (f *inFile) byEnd(count int) map[int][]threadView {
	by := map[int][]threadView{}
	for _, t := range f.lines {
		if t.end > count {
			f.below = append(f.below, t)
			continue
		}
		by[t.end] = append(by[t.end], t)
	}
	return by
}

// assign makes sure that each thread is shown once beside the two versions of a file: at its lines in the new version,
// otherwise at its lines in the old version, otherwise below the files.
func assign(old, latest *inFile) {
	drop := func(from *[]threadView, those []threadView) {
		*from = slices.DeleteFunc(*from, func(t threadView) bool {
			return slices.ContainsFunc(those, func(o threadView) bool { return o.ID == t.ID })
		})
	}
	drop(&old.lines, latest.lines)
	drop(&old.below, latest.lines)
	drop(&latest.below, old.lines)
	drop(&old.below, latest.below)
}

// take removes the threads about a line from the map, and returns them.
func take(by map[int][]threadView, line int) []threadView {
	found := by[line]
	delete(by, line)
	return found
}

// rest returns all threads in the map, in the order of their lines.
func rest(by map[int][]threadView) (all []threadView) {
	for _, line := range slices.Sorted(maps.Keys(by)) {
		all = append(all, by[line]...)
	}
	return all
}

// chosen returns the threads for the panel of a session. If there are many, these are the newest open ones.
func chosen(all []threadView) []threadView {
	if len(all) <= panelThreads {
		return all
	}
	open := slices.DeleteFunc(slices.Clone(all), func(t threadView) bool { return t.Resolved })
	return open[max(0, len(open)-panelThreads):]
}

// summaryOf returns the number of threads as text for people, or "" if there are none.
func summaryOf(all []threadView) string {
	open := 0
	for _, t := range all {
		if !t.Resolved {
			open++
		}
	}
	switch {
	case len(all) == 0:
		return ""
	case open == len(all):
		return number(open, "open thread", "open threads")
	case open == 0:
		return number(len(all), "resolved thread", "resolved threads")
	}
	return strings.Join([]string{number(open, "open thread", "open threads"),
		number(len(all)-open, "resolved", "resolved")}, ", ")
}
