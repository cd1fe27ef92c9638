package workday

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Finding is the result of comparing a restored State with a plain tree.
type Finding int

const (
	Undecided Finding = iota // the comparison with the plain tree gives no result
	Between                  // the State existed between two steps
	Moment                   // the State existed at one moment during a step
	Blend                    // all parts of the State existed during a step, but not at the same moment
	Never                    // a part of the State never existed
)

func (f Finding) String() string {
	return [...]string{"undecided", "between steps", "at a moment of a step", "of several moments of a step", "never"}[f]
}

// oracle repeats the steps of a ledger on a plain file system, and finds the moment at which a restored State existed.
type oracle struct {
	scratch   string   // temporary directory of the oracle
	beginning string   // directory that keepBeginning has written; it contains the state before the first step
	objects   []string // object directories with all objects that steps may need and that the restored state contains
	ledger    []Entry  // entries of the ledger; the first one contains the State at the beginning
}

// before and behind limit the steps that are searched for the State of a checkpoint: steps that ended at most the time
// before earlier than the checkpoint, and that began at most the time behind later.
const (
	before = 3 * time.Second
	behind = 500 * time.Millisecond
)

// ask returns how the restored State of s is related to the steps of the ledger. exact is the index of the ledger entry
// with the same State, or -1 if there is none. The text describes the finding.
func (o *oracle) ask(ctx context.Context, s Saved, exact int) (Finding, string, error) {
	p, err := newPlain(ctx, filepath.Join(o.scratch, "plain"), o.beginning, o.ledger[0].State.Tree, o.objects)
	if err != nil {
		return Undecided, "", fmt.Errorf("create plain tree: %w", err)
	}
	agrees := func(i int) (string, error) {
		is, err := Look(ctx, p.dir)
		if err == nil && p.takeMergedNotes(ctx, o.ledger[i].State, is) {
			is, err = Look(ctx, p.dir)
		}
		if err != nil {
			return "", err
		}
		return o.ledger[i].State.Differs(is), nil
	}
	if d, err := agrees(0); err != nil || d != "" {
		return Undecided, "the plain tree begins otherwise: " + d, err
	}
	first := exact + 1 // index of the first step that is filmed; earlier steps are only repeated
	if exact < 0 {
		exact = -1
		first = slices.IndexFunc(o.ledger, func(e Entry) bool { return e.Begins })
		for i, e := range o.ledger {
			if e.Begins && (i+1 == len(o.ledger) || o.ledger[i+1].At.After(s.Time.Add(-before))) {
				first = i
				break
			}
		}
	}
	last := 0
	for i := 1; i < first; i++ {
		switch e := o.ledger[i]; {
		case e.Begins:
			p.make(ctx, e)
		case !e.Promise:
			last = i
		}
	}
	if d, err := agrees(last); err != nil || d != "" {
		return Never, fmt.Sprintf("after %s a plain tree is not like the one that was worked in: %s", o.ledger[last].Step, d),
			err
	}
	if exact >= 0 {
		return Between, "", nil
	}
	if first < 0 {
		return Undecided, "no step", nil
	}
	f := newFilm(p)
	for _, e := range o.ledger[first:] {
		if e.Begins && e.At.Before(s.Time.Add(behind)) {
			if err := f.record(ctx, e); err != nil {
				return Undecided, "", err
			}
		}
	}
	return o.compare(ctx, f, s.State)
}

// compare searches for a State in the views of a film.
func (o *oracle) compare(ctx context.Context, f *film, s State) (Finding, string, error) {
	env := []string{"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + strings.Join(o.objects, ":")}
	listed, err := run(ctx, f.p.dir, env, "git", "-c", "core.quotePath=false", "ls-tree", "-r", s.Tree)
	if err != nil {
		return Undecided, "", err
	}
	files := map[string]string{}
	for _, line := range lines(listed) {
		about, path, _ := strings.Cut(line, "\t")
		fields := strings.Fields(about)
		files[settled(path)] = fields[0] + " " + fields[2]
	}
	indexes := map[string]bool{} // for each index of the film, by its key: whether it is equal to s.Index
	for key, content := range f.indexes {
		like, err := f.isIndex(ctx, content, s.Index)
		if err != nil {
			return Undecided, "", err
		}
		indexes[key] = like
	}
	refs, under := s.refsKey(), strings.Join(s.Operation, "\n")
	var hasFiles, hasRefs, hasIndex, hasUnder bool
	for _, v := range f.views {
		isFiles, isRefs, isIndex, isUnder := maps.Equal(v.files, files), v.refs == refs, indexes[v.index], v.under == under
		if isFiles && isRefs && isIndex && isUnder {
			return Moment, "", nil
		}
		hasFiles, hasRefs, hasIndex, hasUnder = hasFiles || isFiles, hasRefs || isRefs, hasIndex || isIndex,
			hasUnder || isUnder
	}
	var parts []string // parts of the State that differ in every view
	if !hasFiles {
		for path, value := range files {
			if !slices.ContainsFunc(f.views, func(v view) bool { return v.files[path] == value }) {
				return Never, fmt.Sprintf("%s never was %s", path, value), nil
			}
		}
		for path := range f.views[0].files {
			if files[path] == "" && !slices.ContainsFunc(f.views, func(v view) bool { return v.files[path] == "" }) {
				return Never, path + " never was gone", nil
			}
		}
		parts = append(parts, "files")
	}
	if !hasUnder {
		seen := map[string]bool{}
		for _, v := range f.views {
			for _, line := range lines(v.under) {
				seen[line] = true
			}
		}
		for _, line := range s.Operation {
			if !seen[line] {
				return Never, line + " never was so", nil
			}
		}
		parts = append(parts, "operation")
	}
	if !hasRefs {
		return Never, fmt.Sprintf("refs never were %q", refs), nil
	}
	if !hasIndex {
		return Never, "the index never was so", nil
	}
	return Blend, fmt.Sprintf("%d moments; of several: %s", len(f.views), strings.Join(parts, ", ")), nil
}

// isIndex reports whether git lists the given entries for an index file with these contents.
func (f *film) isIndex(ctx context.Context, content []byte, want []string) (bool, error) {
	if len(content) == 0 {
		return len(want) == 0, nil
	}
	name := filepath.Join(f.p.dir, ".git", "index.film")
	if err := os.WriteFile(name, content, 0o644); err != nil {
		return false, err
	}
	listed, err := run(ctx, f.p.dir, []string{"GIT_INDEX_FILE=" + name}, "git", "ls-files", "--stage", "-v")
	return slices.Equal(lines(listed), want), err
}
