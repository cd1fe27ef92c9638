package writeback

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
)

// idSet is objects.
type idSet map[object.ID]bool

// haul is what a push has to bring: owned objects below tips that the session remote does not have.
type haul struct {
	repo    *session.Repo
	sent    idSet // that it has
	seen    idSet
	objects []object.ID
	ground  idSet // what is not owned, and is stood on
}

// newHaul walks from tips. It costs as much as there is to bring.
func newHaul(ctx context.Context, repo *session.Repo, tips []object.ID, sent idSet) (*haul, error) {
	h := &haul{repo: repo, sent: sent, seen: idSet{}, ground: idSet{}}
	for stack := append([]object.ID(nil), tips...); len(stack) > 0; {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if sent[id] || h.seen[id] || h.ground[id] {
			continue
		}
		if !repo.Owned(id) {
			h.ground[id] = true
			continue
		}
		h.seen[id] = true
		h.objects = append(h.objects, id)
		below, err := h.tip(id)
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", id, err)
		}
		stack = append(stack, below...)
	}
	return h, nil
}

// hadOf is what a session remote has that has these tips, as far as it is worth knowing: all commits, and the trees and
// contents of the newest. Whatever else it has is sent again if it is named anew, which is rare, and does no harm.
func hadOf(ctx context.Context, repo *session.Repo, tips []object.ID) (idSet, error) {
	h := &haul{repo: repo, sent: idSet{}, seen: idSet{}, ground: idSet{}}
	level := tips
	for depth := 0; len(level) > 0; depth++ {
		var next []object.ID
		for _, id := range level {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			if h.seen[id] || !repo.Owned(id) {
				continue
			}
			h.seen[id] = true
			below, tree, err := h.names(id)
			if err == nil && depth < 2 {
				err = h.tree(tree, object.ID{})
			}
			if err != nil {
				return nil, fmt.Errorf("look at %s: %w", id, err)
			}
			next = append(next, below...)
		}
		level = next
	}
	return h.seen, nil
}

// names gives what a commit or tag names. Others name nothing here.
func (h *haul) names(id object.ID) (below []object.ID, tree object.ID, err error) {
	t, content, err := h.repo.Get(id, object.MaxCommitSize)
	if errors.Is(err, odb.ErrTooLarge) {
		return nil, tree, nil
	}
	if err != nil {
		return nil, tree, err
	}
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(h.repo.Format(), content)
		return info.Parents, info.Tree, err
	case object.Tag:
		target, _, err := object.ParseTagTarget(h.repo.Format(), content)
		return []object.ID{target}, tree, err
	}
	return nil, tree, nil
}

// tip takes a commit, or whatever else a ref names.
func (h *haul) tip(id object.ID) ([]object.ID, error) {
	t, content, err := h.repo.Get(id, object.MaxTreeSize)
	if errors.Is(err, odb.ErrTooLarge) {
		return nil, nil // a blob
	}
	if err != nil {
		return nil, err
	}
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(h.repo.Format(), content)
		if err != nil {
			return nil, err
		}
		// The files of a checkpoint are those of a commit of the mounted remote, but for what was changed.
		if p, err := session.ParsePoint(h.repo.Format(), id, content); err == nil {
			for _, stand := range []object.ID{p.Head, p.Base} {
				if !stand.IsZero() && !h.sent[stand] && !h.repo.Owned(stand) {
					h.ground[stand] = true
				}
			}
		}
		var before object.ID
		if len(info.Parents) > 0 {
			if parent, err := h.repo.Commit(info.Parents[0]); err == nil {
				before = parent.Tree
			}
		}
		return info.Parents, h.tree(info.Tree, before)
	case object.Tag:
		target, _, err := object.ParseTagTarget(h.repo.Format(), content)
		return []object.ID{target}, err
	case object.Tree:
		return nil, h.below(content, object.ID{})
	}
	return nil, nil
}

// tree takes a tree and what is below it, except what stands in the tree before, of the parent, in the same place: either
// the session remote has that, or it is taken with the parent.
func (h *haul) tree(id, before object.ID) error {
	if id.IsZero() || id == before || h.sent[id] || h.seen[id] || !h.repo.Owned(id) {
		return nil
	}
	h.seen[id] = true
	h.objects = append(h.objects, id)
	t, content, err := h.repo.Get(id, object.MaxTreeSize)
	if err == nil && t != object.Tree {
		err = fmt.Errorf("%s is a %v, and not a tree", id, t)
	}
	if err != nil {
		return err
	}
	return h.below(content, before)
}

func (h *haul) below(content []byte, before object.ID) error {
	entries, err := object.ParseTree(h.repo.Format(), content)
	if err != nil {
		return err
	}
	old := map[string]object.ID{}
	if !before.IsZero() {
		if list, err := h.repo.Tree(before); err == nil {
			for _, e := range list {
				old[e.Name] = e.ID
			}
		}
	}
	for _, e := range entries {
		switch {
		case e.ID == old[e.Name]:
		case e.Mode == object.ModeDir:
			if err := h.tree(e.ID, old[e.Name]); err != nil {
				return err
			}
		case e.Mode.IsBlob() && !h.sent[e.ID] && !h.seen[e.ID] && h.repo.Owned(e.ID):
			h.seen[e.ID] = true
			h.objects = append(h.objects, e.ID)
		}
	}
	return nil
}

// fill adds what the objects name of the mounted remote's, and the ground does not hold: a file that was taken from a
// commit which is not among it.
func (h *haul) fill(ctx context.Context, ground []object.ID, store Provider) error {
	held, named := idSet{}, idSet{}
	for _, id := range ground {
		if info, err := h.repo.Commit(id); err == nil {
			if err := h.spread(info.Tree, held, idSet{}); err != nil {
				return err
			}
		}
	}
	for _, id := range slices.Clone(h.objects) {
		t, content, err := h.repo.Get(id, object.MaxTreeSize)
		if err != nil {
			continue
		}
		var entries []object.TreeEntry
		switch t {
		case object.Commit: // its tree may be that of another one, which was picked
			var info object.CommitInfo
			if info, err = object.ParseCommit(h.repo.Format(), content); err == nil {
				entries = []object.TreeEntry{{Mode: object.ModeDir, ID: info.Tree}}
			}
		case object.Tree:
			entries, err = object.ParseTree(h.repo.Format(), content)
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Mode == object.ModeGitlink || h.seen[e.ID] || h.sent[e.ID] || held[e.ID] || h.repo.Owned(e.ID) {
				continue
			}
			if e.Mode != object.ModeDir {
				named[e.ID] = true
			} else if err := h.spread(e.ID, named, held); err != nil {
				return err
			}
		}
	}
	if absent := store.Missing(slices.Collect(maps.Keys(named))); len(absent) > 0 {
		if err := store.Provide(ctx, absent, nil); err != nil {
			return fmt.Errorf("fetch contents that the session remote lacks: %w", err)
		}
	}
	h.objects = slices.AppendSeq(h.objects, maps.Keys(named))
	return nil
}

// spread notes a tree and all below it, except what is in another set.
func (h *haul) spread(id object.ID, into, except idSet) error {
	if into[id] || except[id] {
		return nil
	}
	into[id] = true
	entries, err := h.repo.Tree(id)
	if err != nil {
		return fmt.Errorf("look at tree %s: %w", id, err)
	}
	for _, e := range entries {
		switch {
		case e.Mode == object.ModeGitlink || except[e.ID]:
		case e.Mode == object.ModeDir:
			if err := h.spread(e.ID, into, except); err != nil {
				return err
			}
		default:
			into[e.ID] = true
		}
	}
	return nil
}

// packer gives what writes a pack of objects that the Repo holds or borrows. It is git's, which finds deltas among them
// and takes over what lies in packs already; no history is looked at.
func packer(repo *session.Repo, ids []object.ID) func(ctx context.Context, w io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		cmd := gitcmd.Isolated(ctx, "--git-dir="+repo.Dir(), "-c", "core.commitGraph=false", "pack-objects", "-q", "--stdout")
		var in bytes.Buffer
		for _, id := range ids {
			in.WriteString(id.String())
			in.WriteByte('\n')
		}
		var stderr gitcmd.Tail
		cmd.Stdin, cmd.Stderr = &in, &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return fmt.Errorf("make pack: %w", err)
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("make pack: %w", err)
		}
		_, copyErr := bufio.NewReaderSize(out, 64<<10).WriteTo(w)
		if copyErr != nil { // git would wait for somebody to read
			out.Close()
		}
		err = cmd.Wait()
		if copyErr != nil {
			return fmt.Errorf("send pack: %w", copyErr)
		}
		if err != nil {
			return fmt.Errorf("make pack: %w", gitcmd.Failed(cmd, err, stderr.Bytes()))
		}
		return nil
	}
}
