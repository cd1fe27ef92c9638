package ui

import (
	"context"
	"html/template"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
)

const (
	treePage = 2000    // maximum number of entries of a directory that are shown
	maxNames = 2 << 20 // maximum total size of their names in bytes
	maxView  = 1 << 20 // maximum size, in bytes, of a file that is shown
)

// treePageData shows a directory or a file at a point.
type treePageData struct {
	frame
	Point   string
	Steps   []crumb // links to the directories above
	Entries []treeRow
	More    int // number of entries that are not shown
	IsFile  bool
	Parts   []codePart
	Comment *commentForm // form for comments; nil if the page shows no session
	Threads []threadView // threads about the whole file, and those that are outdated
	Lines   int
	Size    string
	Note    string
	From    *fromHere
}

// codePart is a part of a file that ends with a line with threads, or at the end of the file.
type codePart struct {
	Code    template.HTML
	Threads []threadView
}

type treeRow struct{ Name, Link, Kind, Mode string }

// tree shows a directory or a file at a point.
func (p *place) tree(ctx context.Context, point, name string) error {
	page := treePageData{frame: p.frame(firstOf(name, p.repo.Name)+" at "+point, p.within()...), Point: shown(point)}
	page.Steps = []crumb{{shown(point), p.treePath(point, "")}}
	if name != "" {
		parts := strings.Split(name, "/")
		for i := range parts {
			page.Steps = append(page.Steps, crumb{shown(parts[i]), p.treePath(point, strings.Join(parts[:i+1], "/"))})
		}
	}
	err := p.readRefs(ctx, func(g gitread.Repo, refs map[string]string) error {
		commit, err := p.point(ctx, g, refs, point)
		if err != nil {
			return err
		}
		p.addCheckpointCommands(refs, point, &page)
		o, err := g.Stat(ctx, commit, name)
		if err != nil {
			return err
		}
		switch o.Type {
		case "tree":
			return p.directory(ctx, g, o.ID, point, name, &page)
		case "blob":
			l, err := p.newLocator(ctx, g, refs, p.sessionOf(refs, point))
			if err != nil {
				return err
			}
			threads, err := l.in(ctx, g, commit, name)
			if err != nil {
				return err
			}
			if page.Comment, err = l.form(ctx, g, commit, name); err != nil {
				return err
			}
			return page.file(ctx, g, o, name, threads)
		}
		return missing("This is a commit of another repository (a submodule).")
	})
	if err != nil {
		return err
	}
	return p.send(http.StatusOK, "tree.html", page)
}

// addCheckpointCommands adds the commands that begin at a checkpoint to the page, if point names a checkpoint.
func (p *place) addCheckpointCommands(refs map[string]string, point string, page *treePageData) {
	s, checkpoint := sessionlink.Split(point)
	if s == "" || session.ValidName(s) != nil || refs[session.MetaRef(s)] == "" {
		return
	}
	page.Crumbs = append(page.Crumbs, crumb{s, p.sessionPath(s) + query("at", checkpoint)})
	page.From = p.fromHere(s, checkpoint)
}

// directory adds the entries of a tree to the page, directories first.
func (p *place) directory(ctx context.Context, g gitread.Repo, id, point, name string, page *treePageData) error {
	var dirs, others []read.Entry // at most treePage entries
	count, size := 0, 0
	err := g.Entries(ctx, id, func(e read.Entry) bool {
		list := &others
		if e.Type == "tree" {
			list = &dirs
		}
		if count++; len(*list) < treePage && size+len(e.Name) <= maxNames {
			*list = append(*list, e)
			size += len(e.Name)
		}
		return true
	})
	if err != nil {
		return err
	}
	list := append(dirs, others...)
	list = list[:min(len(list), treePage)]
	page.More = count - len(list)
	for _, e := range list {
		row := treeRow{Name: shown(e.Name), Kind: e.Type, Mode: e.Mode, Link: p.treePath(point, path.Join(name, e.Name))}
		switch e.Type {
		case "tree":
			row.Name += "/"
		case "gitlink":
			row.Link = ""
		}
		page.Entries = append(page.Entries, row)
	}
	return nil
}

// file adds the contents of a file with its threads to the page.
func (page *treePageData) file(ctx context.Context, g gitread.Repo, o read.Object, name string, threads inFile) error {
	page.Threads = slices.Concat(threads.below, threads.lines)
	page.IsFile, page.Size = true, size(o.Size)
	if o.Size > maxView {
		page.Note = "The file is too large for this page."
		return nil
	}
	var text []byte
	if err := g.Contents(ctx, []string{o.ID}, maxView, func(_ int, c read.Content) { text = c.Bytes }); err != nil {
		return err
	}
	if binary(text) {
		page.Note = "The file is binary."
		return nil
	}
	var b strings.Builder
	code := highlight(ctx, name, text)
	ends := threads.byEnd(len(code))
	page.Threads = threads.below
	for i, line := range code {
		n := strconv.Itoa(i + 1)
		b.WriteString(`<span id="L` + n + `"><a href="#L` + n + `" data-n="` + n + `" aria-label="Line ` + n + `"></a>` +
			line + "</span>\n")
		if about := ends[i+1]; len(about) > 0 || i+1 == len(code) {
			// the text is safe, because highlight has escaped the code
			page.Parts = append(page.Parts, codePart{template.HTML(b.String()), about})
			b.Reset()
		}
	}
	page.Lines = len(code)
	return nil
}
