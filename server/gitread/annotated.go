package gitread

import (
	"cmp"
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/git/diff"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/session/annotate"
)

// Annotated reads trees and contents for annotate.Where. It keeps the results for further annotations of the same
// request. It is used by one goroutine.
type Annotated struct {
	repo  Repo
	base  string // commit that is compared instead of a tree that gc has removed; "" for none
	diffs map[[2]string][]read.Change
	hunks map[[2]object.ID]textHunks
}

var (
	_ annotate.Files    = (*Annotated)(nil)
	_ annotate.Contents = (*Annotated)(nil)
)

// textHunks is a result of the method Hunks.
type textHunks struct {
	list []diff.Hunk
	text bool
}

// NewAnnotated returns an Annotated for a repository. The commit base is compared instead of a tree of an annotation
// that the repository does not have any more; "" for none.
func NewAnnotated(r Repo, base string) *Annotated {
	return &Annotated{repo: r, base: base, diffs: map[[2]string][]read.Change{}, hunks: map[[2]object.ID]textHunks{}}
}

// Entry implements annotate.Files.
func (a *Annotated) Entry(ctx context.Context, tree object.ID, path string) (object.TreeEntry, error) {
	o, err := a.repo.Stat(ctx, tree.String(), path)
	if errors.Is(err, read.ErrNotFound) {
		return object.TreeEntry{}, nil
	}
	if err != nil {
		return object.TreeEntry{}, err
	}
	id, err := object.ParseID(o.ID)
	mode := object.ModeFile
	if o.Type != object.Blob.String() {
		mode = object.ModeDir
	}
	return object.TreeEntry{Name: path, Mode: mode, ID: id}, err
}

// Content implements annotate.Contents.
func (a *Annotated) Content(ctx context.Context, blob object.ID) (text []byte, err error) {
	var large error
	err = a.repo.Contents(ctx, []string{blob.String()}, annotate.MaxLined, func(_ int, c read.Content) {
		if text = c.Bytes; c.ID != "" && text == nil {
			large = annotate.ErrLines
		}
	})
	return text, cmp.Or(err, large)
}

// Renamed implements annotate.Files. It prefers a file with the same contents; otherwise git detects the rename. If the
// repository does not have the tree of the annotation any more, only a file with the same contents is found.
func (a *Annotated) Renamed(ctx context.Context, from, to object.ID, path string, blob object.ID) (string, error) {
	changes, err := a.changes(ctx, from.String(), to.String())
	known := err == nil
	if errors.Is(err, read.ErrNotFound) && a.base != "" {
		changes, err = a.changes(ctx, a.base, to.String())
	}
	if err != nil {
		return "", err
	}
	renamed := ""
	var added []annotate.File
	for _, c := range changes {
		if c.Status != "added" && c.Status != "renamed" {
			continue
		}
		id, err := object.ParseID(c.NewHash)
		if err != nil {
			return "", err
		}
		if added = append(added, annotate.File{Path: c.Path, Blob: id}); c.OldPath == path {
			renamed = c.Path
		}
	}
	if _, same := annotate.Likely(added, path, blob); same != "" || !known {
		return same, nil
	}
	return renamed, nil
}

// maxAnnotated is the maximum number of changed files among which renamed ones are found.
const maxAnnotated = 20_000

func (a *Annotated) changes(ctx context.Context, from, to string) ([]read.Change, error) {
	key := [2]string{from, to}
	if found, ok := a.diffs[key]; ok {
		return found, nil
	}
	d, err := a.repo.Changes(ctx, from, to, maxAnnotated)
	if err != nil {
		return nil, err
	}
	a.diffs[key] = d.Changes
	return d.Changes, nil
}

// Hunks implements annotate.Files.
func (a *Annotated) Hunks(ctx context.Context, from, to object.ID) ([]diff.Hunk, bool, error) {
	key := [2]object.ID{from, to}
	if h, ok := a.hunks[key]; ok {
		return h.list, h.text, nil
	}
	list, text, err := a.repo.Hunks(ctx, from.String(), to.String())
	if err == nil {
		a.hunks[key] = textHunks{list, text}
	}
	return list, text, err
}
