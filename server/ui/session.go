package ui

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// sessionPage shows the timeline of a session.
type sessionPage struct {
	frame
	Name, Path    string
	Meta          session.Meta
	Profile       profileView
	Actor         string
	Branch        string
	Checkpoints   int
	Thin          bool   // true if the repository does not have the files on which the session is based
	Unread        string // reason why the checkpoints of a thin session cannot be read; "" if they can
	Commands      []command
	Entries       []entry
	Older, Newer  string // paths of the next pages with older and newer entries; "" if there are none
	Oldest        bool   // true if the oldest entries are shown first
	Order         string // path of the timeline in the other order
	All           string // path of the difference between the base and the newest checkpoint
	Cursor        *cursorPanel
	CursorMissing bool
	Threads       string       // number of threads, as text for people; "" if there are none
	Review        *reviewPanel // review of the session; shown while no entry is selected
	Do            *doing
	States        []stateButton
}

// cursorPanel shows the selected entry: its changes, and the acts and commands that begin there.
type cursorPanel struct {
	Kind, ID    string
	Title       string
	Message     string
	Against     string // name of the state with which the changes are compared
	Tree, Diff  string // paths of the pages with the files and the difference
	Changes     []changeRow
	Total, More int
	Unreadable  string // reason why the changes cannot be shown
	Threads     []threadView
	Comment     *commentForm
	Do          *doing
	Pins        []string // names of the checkpoint, if it is pinned
	commit      string
	From        *fromHere
}

const panelFiles = 100 // maximum number of files in a panel

// lacksObjects is the text that is shown instead of a difference if the repository does not have its objects.
const lacksObjects = "The repository does not have all objects of this difference; they are in the repository where the code comes from."

// session shows the timeline of a session.
func (p *place) session(ctx context.Context, name string) error {
	page := sessionPage{frame: p.frame(name, p.within()...), Name: name, Path: p.sessionPath(name)}
	err := p.readRefs(ctx, func(g gitread.Repo, refs map[string]string) error {
		if err := hasSession(refs, name); err != nil {
			return err
		}
		x, err := loadAxis(ctx, g, refs, name)
		if err != nil {
			return err
		}
		do := p.doing(refs, name)
		threads, err := p.threads(ctx, g, refs, name, do)
		if err != nil {
			return err
		}
		if at := p.r.FormValue("at"); at != "" {
			page.Cursor, err = p.panel(ctx, x, at)
			if errors.Is(err, read.ErrNotFound) {
				page.CursorMissing, err = true, nil
			}
			if page.Cursor != nil {
				page.Cursor.addThreads(threads)
				page.Cursor.addForms(do, pins(refs, name))
			}
		} else {
			page.Review, err = p.reviewOf(ctx, g, refs, name, x.slots[len(x.slots)-1].ID, threads)
		}
		if err != nil {
			return err
		}
		// answer with the panel alone, which the script shows beside the entries that the page has already
		if p.r.FormValue("part") == "cursor" {
			return nil
		}
		page.Profile = p.profile(refs, *x.meta)
		page.Meta, page.Actor, page.Branch = *x.meta, actorOf(*x.meta), shown(strings.TrimPrefix(x.meta.Ref, "refs/heads/"))
		page.Checkpoints = len(x.slots) - 1
		page.Thin, page.Unread = isThin(refs, name), p.thin[name]
		page.Threads = summaryOf(threads)
		page.Do, page.States = do, do.states(x.meta.State)
		if err := p.timeline(ctx, x, refs, &page); err != nil {
			return err
		}
		countThreads(page.Entries, threads)
		return nil
	})
	if err == nil && page.Review != nil {
		err = p.addRequests(ctx, page.Review, name)
	}
	if err != nil {
		return err
	}
	if p.r.FormValue("part") == "cursor" {
		return p.send(http.StatusOK, "cursor", page)
	}
	resume := "artifactfs session resume " + control.ShellWord(p.sessionWord(name, "")) + " " + control.ShellWord(name)
	page.Commands = []command{{"Resume", resume},
		{"Fork", p.forkCommand(name, "")}}
	if page.Unread != "" {
		page.Commands = append(page.Commands, command{"Timeline",
			"artifactfs session log " + name + " --session-remote " + control.ShellWord(p.remote())})
	}
	return p.send(http.StatusOK, "session.html", page)
}

// hasSession returns an error unless there is a session with this name.
func hasSession(refs map[string]string, name string) error {
	if session.ValidName(name) != nil || refs[session.MetaRef(name)] == "" {
		return missing("The repository has no session with this name.")
	}
	return nil
}

// isThin reports whether the repository does not have the base of a session (package session/thin).
func isThin(refs map[string]string, name string) bool { return refs[thin.Prefix+name] != "" }

// timeline adds the entries that the request selects to the page.
func (p *place) timeline(ctx context.Context, x *axis, refs map[string]string, page *sessionPage) error {
	oldest := p.r.FormValue("order") == "oldest"
	order := []string{"order", "oldest"}
	if page.Oldest = oldest; oldest {
		page.Order = page.Path
	} else {
		page.Order, order = page.Path+query(order...), nil
	}
	from, up := position{slot: len(x.slots)}, false
	var known bool
	switch before, after, at := p.r.FormValue("before"), p.r.FormValue("after"), p.r.FormValue("at"); {
	case before != "":
		from, known = x.parse(before)
	case after != "":
		from, known = x.parse(after)
		up = true
	case at != "" && !object.ValidID(at):
		from, known = x.around(at), true
	default:
		known = true
		if up = oldest; up {
			from = position{0, -1}
		}
	}
	if !known {
		return missing("The timeline has no such page.")
	}
	// A page that would begin after the newest entry begins at the newest slot.
	if !up && from.item == 0 {
		from = position{from.slot - 1, 1 << 30}
	}
	list, err := x.page(ctx, from, up)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		first, last := list[0].at, list[len(list)-1].at
		if x.older(last) {
			page.Older = page.Path + query(append(order, "before", x.text(last))...)
		}
		newer, err := x.newer(ctx, first)
		if err != nil {
			return err
		}
		if newer {
			page.Newer = page.Path + query(append(order, "after", x.text(first))...)
		}
	}
	pinned, at := pins(refs, x.name), p.r.FormValue("at")
	here := query(append(order, "before", p.r.FormValue("before"), "after", p.r.FormValue("after"))...)
	for i := range list {
		e := &list[i]
		to := firstOf(e.Commit, x.slots[e.at.slot].Commit)
		if e.Kind != "commit" {
			to = x.slots[e.at.slot].ID
		}
		if e.Kind == "checkpoint" {
			e.Pins = pinned[e.Commit]
		}
		if to != "" {
			e.Link = page.Path + joined(here, "at", to)
		}
		e.Chosen = at != "" && at == e.ID && (e.Kind == "checkpoint" || e.Kind == "commit")
	}
	if page.Entries = list; oldest {
		slices.Reverse(list)
	}
	if newest := x.slots[len(x.slots)-1]; newest.ID != "" && object.ValidID(x.meta.Base) {
		page.All = p.path + "/diff" + query("a", x.meta.Base, "b", x.name+"@"+newest.ID)
	}
	return nil
}

// joined adds a name and a value to a URL query.
func joined(q, name, value string) string {
	if q == "" {
		return query(name, value)
	}
	return q + "&" + query(name, value)[1:]
}

// panel returns the panel for the checkpoint or the commit with the id at.
func (p *place) panel(ctx context.Context, x *axis, at string) (*cursorPanel, error) {
	if object.ValidID(at) {
		return p.commitPanel(ctx, x, at)
	}
	slot := x.slotOf(at)
	if slot == 0 || !strings.EqualFold(x.slots[slot].ID, at) {
		return nil, read.ErrNotFound
	}
	var c session.Checkpoint
	err := x.g.Contents(ctx, []string{x.slots[slot].Commit}, maxCommit,
		func(_ int, content read.Content) { c, _ = gitread.CheckpointOf(content) })
	if err != nil {
		return nil, err
	}
	if c.ID == "" {
		return nil, read.ErrNotFound
	}
	name := x.name + "@" + string(c.ID)
	panel := &cursorPanel{Kind: "checkpoint", ID: string(c.ID),
		Title:   stamp(c.ID.Time()) + " · " + clip(string(c.Reason), 40),
		Message: clip(c.Message, 4000), Tree: p.treePath(name, ""), commit: c.Commit.String()}
	panel.From = p.fromHere(x.name, string(c.ID))
	before, what := x.before(slot, c)
	return panel, p.changesOf(ctx, x, panel, before, what, c.Commit.String(), name)
}

// before returns the commit with which the changes of a checkpoint are compared: the previous checkpoint in its lane,
// or the base. what is the name of that commit for people.
func (x *axis) before(slot int, c session.Checkpoint) (commit, what string) {
	if i := x.slotOf(string(c.Prev)); i > 0 && x.slots[i].ID == string(c.Prev) {
		return x.slots[i].Commit, "the checkpoint before"
	}
	if slot > 1 && c.Prev != "" { // gc has dropped the previous checkpoint, so use the one in the previous slot
		return x.slots[slot-1].Commit, "an older checkpoint"
	}
	if !c.Base.IsZero() {
		return c.Base.String(), "the base of the session"
	}
	return object.EmptyTree(c.Commit.Format()).String(), "nothing"
}

func (p *place) commitPanel(ctx context.Context, x *axis, id string) (*cursorPanel, error) {
	c, err := x.g.Commit(ctx, id)
	if err != nil {
		return nil, err
	}
	panel := &cursorPanel{Kind: "commit", ID: id, Title: "commit " + short(id) + " by " + clip(c.Author.Name, 80),
		Message: clip(c.Message, 4000), Tree: p.treePath(id, "")}
	what, before := "its parent", ""
	if len(c.Parents) > 0 {
		before = c.Parents[0]
	} else if parsed, err := object.ParseID(id); err == nil {
		before, what = object.EmptyTree(parsed.Format()).String(), "nothing"
	}
	if point := x.with(id); point != "" {
		panel.From = p.fromHere(x.name, point)
	}
	return panel, p.changesOf(ctx, x, panel, before, what, id, id)
}

// changesOf adds to panel the files that differ between two commits of a session.
func (p *place) changesOf(ctx context.Context, x *axis, panel *cursorPanel, before, what, commit, name string) error {
	panel.Against, panel.Diff = what, p.path+"/diff"+query("a", before, "b", name, "s", x.name)
	d, err := x.g.Changes(ctx, before, commit, maxFiles)
	if errors.Is(err, read.ErrNotFound) || gitcmd.Exited(err, 128) && ctx.Err() == nil {
		panel.Unreadable = lacksObjects
		return nil
	}
	if err != nil {
		return err
	}
	slices.SortStableFunc(d.Changes, func(a, b read.Change) int { return strings.Compare(a.Path, b.Path) })
	panel.Total, panel.More = len(d.Changes), max(0, len(d.Changes)-panelFiles)
	for _, c := range d.Changes[:len(d.Changes)-panel.More] {
		panel.Changes = append(panel.Changes, p.changeRow(d, c, x.name))
	}
	return nil
}
