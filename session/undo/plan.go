package undo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
)

const (
	// maxDiffs is the maximum number of comparisons of checkpoints for one undo.
	maxDiffs = 2000
	// maxPaths is the number of paths above which a restore is asked for directories, because the daemon compares each
	// change with each path.
	maxPaths = 100
	// Modes of an empty directory and of a submodule in a control.PathChange.
	dirMode, submoduleMode = "040000", "160000"
)

// differ returns the paths at which two checkpoints differ, as control.SessionDiffReply has them.
type differ func(a, b string) ([]control.PathChange, error)

// OtherChange is a path that an undo would restore, although somebody else has changed it.
type OtherChange struct {
	Path string `json:"path"`         // path relative to the mount
	By   string `json:"by,omitempty"` // agents whose calls ran at that time, separated by commas; missing: none
}

// state is the entry of a path in a checkpoint. The zero value means that the checkpoint does not contain the path.
type state struct{ mode, id string }

// track is the way of a path from the checkpoint from which files are restored to the present.
type track struct {
	present, wanted state           // now, and in that checkpoint; zero if a restore would not change the path
	last            state           // after the last change that was followed
	mark            state           // after the last change by the target
	touched         bool            // whether the target has changed the path
	later           bool            // whether the same conversations have changed the path after that
	during          map[string]bool // who else has changed the path before the mark
	since           map[string]bool // who else has changed the path after the mark
}

// differs reports whether a restore of the checkpoint would change the path. It leaves submodules unchanged.
func (t *track) differs() bool {
	return t.present != t.wanted && t.present.mode != submoduleMode && t.wanted.mode != submoduleMode
}

// isFile reports whether the path is a file or link, now or in the checkpoint from which files are restored, and not
// only an empty directory.
func (t *track) isFile() bool {
	file := func(s state) bool { return s.mode != "" && s.mode != dirMode }
	return file(t.present) || file(t.wanted)
}

// empties reports whether the path is an empty directory in the checkpoint from which files are restored, but not now.
func (t *track) empties() bool { return t.differs() && t.wanted.mode == dirMode }

// others returns who else has changed the path in a way that a restore would take back. Changes after the last one of
// the target do not count if they were taken back.
func (t *track) others() map[string]bool {
	by := maps.Clone(t.during)
	if !t.touched || t.last != t.mark {
		if by == nil {
			by = map[string]bool{}
		}
		maps.Copy(by, t.since)
	}
	return by
}

// plan is what an undo or redo changes.
type plan struct {
	target
	to      string            // checkpoint from which files are restored
	tracks  map[string]*track // all paths that were changed since that checkpoint, by path
	paths   []string          // paths to restore, sorted
	others  []OtherChange     // those of them that somebody else has changed, too
	later   []string          // those of them that the same conversations have changed later
	unknown bool              // the beginning or the end of a call is not known exactly
	moved   bool              // the calls have moved HEAD
	reset   string            // commit to which git reset --soft moves HEAD back; "": that would affect other commits
}

// class describes who has made the changes between two neighbouring checkpoints.
type class struct {
	selected bool   // calls of the target have run, or the undo that is redone
	foreign  bool   // somebody else may have made changes, too
	by       string // with foreign: agents of other conversations, separated by commas; "": none
}

// plan decides which paths the target restores. It changes nothing.
func (h *history) plan(t target, diff differ) (plan, error) {
	p := plan{target: t, tracks: map[string]*track{}}
	from, err := h.start(&p)
	if err != nil {
		return p, err
	}
	list, diffs := h.classes(t, from), 0
	same := func(i int) bool { return h.points[i].Tree == h.points[i+1].Tree }
	for a := from; a < len(list); {
		// Nobody has changed files in an interval with the same tree at both ends, so it does not matter who had a call.
		if same(a) {
			a++
			continue
		}
		c, b := list[a], a+1
		for b < len(list) && (list[b] == c || same(b)) {
			b++
		}
		if x, y := h.points[a], h.points[b]; x.Tree != y.Tree {
			if diffs++; diffs > maxDiffs {
				return p, fmt.Errorf("more than %d calls and changes of others have to be compared", maxDiffs)
			}
			changes, err := diff(x.ID, y.ID)
			if err != nil {
				return p, err
			}
			p.follow(changes, c)
		}
		a = b
	}
	if now := h.points[len(h.points)-1]; now.Tree != h.points[from].Tree {
		changes, err := diff(now.ID, p.to)
		if err != nil {
			return p, err
		}
		for _, d := range merged(changes) {
			t := p.track(d.Path)
			t.present, t.wanted = state{d.OldMode, d.Old}, state{d.NewMode, d.New}
		}
	}
	if t.undo != nil {
		if err := p.onlyRestored(diff); err != nil {
			return p, err
		}
	}
	p.choose()
	return p, nil
}

// start sets the checkpoint from which files are restored, and returns its position.
func (h *history) start(p *plan) (from int, err error) {
	if u := p.undo; u != nil {
		from, exact := h.place(u.before)
		if _, there := h.place(u.after); !exact || !there {
			return 0, dropped(u.before)
		}
		p.to = u.before
		return from, nil
	}
	from = len(h.points)
	end := 0
	for _, c := range p.calls {
		s := h.span(c)
		if _, exact := h.place(c.before); !exact {
			return 0, dropped(c.before)
		}
		from, end, p.unknown = min(from, s.from), max(end, s.to), p.unknown || !s.known
	}
	p.to = h.points[from].ID
	was, then, now := h.points[from], h.points[end], h.points[len(h.points)-1]
	if p.moved = was.Head != then.Head; p.moved && was.Head != "" && now.Head == then.Head && now.Branch == was.Branch {
		p.reset = was.Head
	}
	return from, nil
}

// classes returns, for each checkpoint from the position from on, who has made the changes between it and the next one,
// as seen by the target.
func (h *history) classes(t target, from int) []class {
	n := len(h.points) - 1
	list, who := make([]class, n), make([]map[conversation]bool, n)
	for _, c := range h.calls {
		s := h.span(c)
		for i := max(s.from, from); i < s.to; i++ {
			if who[i] == nil {
				who[i] = map[conversation]bool{}
			}
			who[i][c.who] = who[i][c.who] || s.sure(i)
			list[i].selected = list[i].selected || t.undo == nil && slices.Contains(t.calls, c)
		}
	}
	// Between the two checkpoints of a move, only the move has changed files, even if an agent has run the command.
	for _, m := range h.moves {
		a, exact := h.place(m.before)
		b, there := h.place(m.after)
		for i := max(a, from); exact && there && i < b; i++ {
			list[i].selected, who[i] = m == t.undo, owners(m.calls)
		}
	}
	for i := from; i < n; i++ {
		if !list[i].selected || t.undo == nil {
			list[i] = list[i].withOthers(t, who[i])
		}
	}
	return list
}

// owners returns the conversations of the calls.
func owners(calls []*call) map[conversation]bool {
	who := map[conversation]bool{}
	for _, c := range calls {
		who[c.who] = true
	}
	return who
}

// withOthers adds the conversations that do not belong to the target. For a redo, these are all conversations, because
// the agent may have worked on after the undo. The values of who state whether a call of the conversation has run for
// sure. If none has, somebody without an agent may have made changes.
func (c class) withOthers(t target, who map[conversation]bool) class {
	own := map[conversation]bool{}
	if t.undo == nil {
		own = owners(t.calls)
	}
	agents, sure := map[string]bool{}, false
	for w, ran := range who {
		sure = sure || ran
		if own[w] {
			continue
		}
		name := w.agent
		for o := range own {
			if o.agent == name {
				name += " in another conversation"
				break
			}
		}
		agents[name] = true
	}
	c.by = strings.Join(slices.Sorted(maps.Keys(agents)), ", ")
	c.foreign = !sure || len(agents) > 0
	return c
}

// track returns the track of a path. If there is none, it adds one.
func (p *plan) track(path string) *track {
	if p.tracks[path] == nil {
		p.tracks[path] = &track{}
	}
	return p.tracks[path]
}

// merged returns a list of changes in which each path occurs once. The daemon reports that an empty directory has
// replaced a file as two changes, a new directory and a removed file.
func merged(list []control.PathChange) (all []control.PathChange) {
	for _, d := range list {
		if n := len(all); n > 0 && all[n-1].Path == d.Path {
			e := &all[n-1]
			e.OldMode, e.Old = cmp.Or(e.OldMode, d.OldMode), cmp.Or(e.Old, d.Old)
			e.NewMode, e.New = cmp.Or(e.NewMode, d.NewMode), cmp.Or(e.New, d.New)
			continue
		}
		all = append(all, d)
	}
	return all
}

// follow adds changes that were made by those whom the class describes. It must be called in the order of time.
func (p *plan) follow(changes []control.PathChange, c class) {
	for _, d := range merged(changes) {
		p.track(d.Path).follow(state{d.NewMode, d.New}, c)
		if d.NewMode == "" {
			continue
		}
		// The daemon does not report that a directory is not empty any more.
		for dir := range parents(d.Path) {
			if t := p.tracks[dir]; t != nil && t.last.mode == dirMode {
				t.follow(state{}, c)
			}
		}
	}
}

// follow adds a change to the state to.
func (t *track) follow(to state, c class) {
	note := func(by *map[string]bool) {
		if *by == nil {
			*by = map[string]bool{}
		}
		(*by)[c.by] = true
	}
	t.last = to
	switch {
	case c.selected:
		t.touched, t.mark, t.later = true, t.last, false
		for by := range t.since {
			if t.during == nil {
				t.during = map[string]bool{}
			}
			t.during[by] = true
		}
		if c.foreign {
			note(&t.during)
		}
	case c.foreign:
		note(&t.since)
	default:
		t.later = t.touched
	}
}

// onlyRestored excludes the paths that somebody else has changed while the undo that is redone was running: after the
// undo, they did not have the state that it restores.
func (p *plan) onlyRestored(diff differ) error {
	changes, err := diff(p.undo.to, p.undo.after)
	if err != nil {
		if e := control.AsError(err); e.ErrorCode() == control.CodeNotFound {
			return nil // the checkpoint from which the undo has restored was dropped
		}
		return err
	}
	for _, d := range changes {
		if t := p.tracks[d.Path]; t != nil {
			t.touched = false
		}
	}
	return nil
}

// groupOf returns the path of the file that must be restored together with path, because it has the name of a directory
// above path, now or in the checkpoint from which files are restored. If there is none, it returns path.
func (p *plan) groupOf(path string) string {
	for i := range path {
		if path[i] != '/' {
			continue
		}
		if t := p.tracks[path[:i]]; t != nil && t.differs() && t.isFile() {
			return path[:i]
		}
	}
	return path
}

// above returns the directories above the differing paths in mine, and those above the other differing paths.
func (p *plan) above(mine map[string]bool) (dirs, rest map[string]bool) {
	dirs, rest = map[string]bool{}, map[string]bool{}
	for path, t := range p.tracks {
		if !t.differs() {
			continue
		}
		for dir := range parents(path) {
			if mine[path] {
				dirs[dir] = true
			} else {
				rest[dir] = true
			}
		}
	}
	return dirs, rest
}

// choose sets the paths to restore, and which of them others have changed.
func (p *plan) choose() {
	chosen, mine := map[string]bool{}, map[string]bool{} // chosen: by group
	for path, t := range p.tracks {
		if t.touched && t.differs() {
			chosen[p.groupOf(path)] = true
		}
	}
	for path, t := range p.tracks {
		if t.differs() && chosen[p.groupOf(path)] {
			mine[path] = true
		}
	}
	// A directory becomes empty again if everything is removed from it. Otherwise it is not restored, because that would
	// restore everything below it.
	dirs, rest := p.above(mine)
	for path, t := range p.tracks {
		if t.empties() {
			mine[path] = (mine[path] || dirs[path]) && !rest[path]
		}
	}
	for path, t := range p.tracks {
		if !mine[path] {
			continue
		}
		p.paths = append(p.paths, path)
		if by := t.others(); len(by) > 0 {
			delete(by, "")
			p.others = append(p.others, OtherChange{path, strings.Join(slices.Sorted(maps.Keys(by)), ", ")})
		}
		if t.later && t.last != t.mark {
			p.later = append(p.later, path)
		}
	}
	slices.Sort(p.paths)
	slices.Sort(p.later)
	slices.SortFunc(p.others, func(a, b OtherChange) int { return cmp.Compare(a.Path, b.Path) })
}

// without removes the paths that others have changed, and those that can only be restored together with them. It
// returns the removed paths.
func (p *plan) without() (kept []string) {
	groups, mine := map[string]bool{}, map[string]bool{}
	for _, o := range p.others {
		groups[p.groupOf(o.Path)] = true
	}
	for _, path := range p.paths {
		if mine[path] = !groups[p.groupOf(path)]; !mine[path] {
			kept = append(kept, path)
		}
	}
	_, rest := p.above(mine)
	p.paths = slices.DeleteFunc(p.paths, func(path string) bool {
		return !mine[path] || p.tracks[path].empties() && rest[path]
	})
	return kept
}

// request returns the paths for a request to restore p.paths. Many paths are replaced by the directories in which
// nothing else differs.
func (p *plan) request() []string {
	mine, asked := map[string]bool{}, map[string]bool{}
	for _, path := range p.paths {
		mine[path] = true
	}
	_, rest := p.above(mine)
	for _, path := range p.paths {
		if len(p.paths) > maxPaths {
			for dir := range parents(path) {
				if !rest[dir] {
					path = dir
					break
				}
			}
		}
		asked[path] = true
	}
	return slices.Sorted(maps.Keys(asked))
}

// parents returns the directories above a path, from the root of the mount downwards, without the root itself.
func parents(path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := range path {
			if path[i] == '/' && !yield(path[:i]) {
				return
			}
		}
	}
}

// dropped returns the error that a checkpoint does not exist any more.
func dropped(id string) error {
	return &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotFound,
		Cause: fmt.Sprintf("checkpoint %s was dropped, or is one of the session from which this one was forked",
			cmp.Or(id, "before the call")),
		Hint: "artifactfs session log lists the checkpoints, and artifactfs session restore ID restores one"}
}
