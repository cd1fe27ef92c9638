package promotion

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/review"
)

// maxHistory is the maximum number of commits of a session that are read. A session with more commits cannot be
// promoted or summarised.
const maxHistory = 100_000

// errHistory means that a session has more than maxHistory commits.
var errHistory = fmt.Errorf("session has more than %d commits", maxHistory)

// errCheckpointCommit means that the history of HEAD contains a checkpoint, which must not be pushed to another
// repository.
var errCheckpointCommit = errors.New("history of HEAD contains a checkpoint")

// owned is a commit that was made in a session.
type owned struct {
	id, tree  object.ID
	parents   []object.ID
	committed time.Time // time of the committer
	content   []byte    // encoded commit
}

// history has the commits of a session that are reachable from head, up to the commits of the mounted remote on which
// they are based.
type history struct {
	head    object.ID
	commits []owned                 // commits of the session, each before its parents, newest first otherwise
	index   map[object.ID]int       // indexes in commits
	bases   []object.ID             // commits of the mounted remote that are parents of commits, or head itself
	base    map[object.ID]bool      // set of the commits in bases
	trees   map[object.ID]object.ID // newest commit of the session for each tree
}

// history returns the commits of the session that are reachable from head. It returns errCheckpointCommit if there is a
// checkpoint among them, because the user has merged one.
func (o *Session) history(ctx context.Context, head object.ID) (*history, error) {
	h := &history{head: head, index: map[object.ID]int{}, base: map[object.ID]bool{}, trees: map[object.ID]object.ID{}}
	found := map[object.ID]owned{}
	for stack := []object.ID{head}; len(stack) > 0; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if _, known := found[id]; known || h.base[id] {
			continue
		}
		// A copy of a session that was read from its session remote owns all objects that were fetched into it, so
		// Owned is not sufficient.
		if !o.Repo.Owned(id) || id.String() == o.Record.Commit || slices.Contains(o.Known, id) {
			h.base[id] = true
			h.bases = append(h.bases, id)
			continue
		}
		c, err := o.commit(id)
		if err != nil {
			return nil, err
		}
		if found[id] = c; len(found) > maxHistory {
			return nil, errHistory
		}
		stack = append(stack, c.parents...)
	}
	h.sort(found)
	return h, o.based(ctx, h.bases)
}

// based fetches those of the commits ids of the mounted remote that are missing on this host.
func (o *Session) based(ctx context.Context, ids []object.ID) error {
	var missing []object.ID
	for _, id := range ids {
		if _, err := o.Repo.Commit(id); errors.Is(err, odb.ErrNotFound) {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 || o.Commits == nil {
		return nil
	}
	return o.Commits(ctx, missing)
}

// commit returns a commit of the session. It returns errCheckpointCommit if it is a checkpoint.
func (o *Session) commit(id object.ID) (owned, error) {
	t, content, err := o.Repo.Get(id, object.MaxCommitSize)
	if err == nil && t != object.Commit {
		err = fmt.Errorf("object %s is a %s, want a commit", id, t)
	}
	if err != nil {
		return owned{}, fmt.Errorf("read commit: %w", err)
	}
	info, err := object.ParseCommit(o.Repo.Format(), content)
	if err != nil {
		return owned{}, err
	}
	if _, err := session.ParseCheckpoint(o.Repo.Format(), id, content); err == nil {
		return owned{}, fmt.Errorf("%w: %s", errCheckpointCommit, id)
	}
	return owned{id: id, tree: info.Tree, parents: info.Parents, committed: info.Committed, content: content}, nil
}

// sort sets the fields commits, index and trees to the commits in found. Each commit comes before its parents, and
// newer commits come first otherwise.
func (h *history) sort(found map[object.ID]owned) {
	children := map[object.ID]int{}
	for _, c := range found {
		for _, p := range c.parents {
			children[p]++
		}
	}
	var ready []owned
	add := func(id object.ID) {
		c, ok := found[id]
		if !ok {
			return
		}
		at, _ := slices.BinarySearchFunc(ready, c, func(x, y owned) int { return x.committed.Compare(y.committed) })
		ready = slices.Insert(ready, at, c)
	}
	for add(h.head); len(ready) > 0; {
		c := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		h.index[c.id] = len(h.commits)
		if _, known := h.trees[c.tree]; !known {
			h.trees[c.tree] = c.id
		}
		h.commits = append(h.commits, c)
		for _, p := range c.parents {
			if children[p]--; children[p] == 0 {
				add(p)
			}
		}
	}
}

// has reports whether id is a commit of the session, or one of the commits on which the session is based.
func (h *history) has(id object.ID) bool {
	_, ok := h.index[id]
	return ok || h.base[id]
}

// ancestors returns the commit id and the commits of the session that are reachable from it.
func (h *history) ancestors(id object.ID) map[object.ID]bool {
	seen := map[object.ID]bool{}
	for stack := []object.ID{id}; len(stack) > 0; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		if i, ok := h.index[id]; ok {
			stack = append(stack, h.commits[i].parents...)
		}
	}
	return seen
}

// without returns the commits of the session that are not in the set seen, newest first.
func (h *history) without(seen map[object.ID]bool) []owned {
	return slices.DeleteFunc(slices.Clone(h.commits), func(c owned) bool { return seen[c.id] })
}

// shown converts the commit into the form of a reply.
func (c owned) shown() control.SummaryCommit {
	s := control.SummaryCommit{ID: c.id.String(), Subject: c.text().Subject(), Time: c.committed.UTC()}
	header, _, _ := strings.Cut(string(c.content), "\n\n")
	for line := range strings.Lines(header) {
		// The header is "author NAME <MAIL> SECONDS ZONE".
		text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "author ")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(text, " <")
		s.Author = review.Shorten(name, maxLine)
		if fields := strings.Fields(rest[strings.LastIndex(rest, ">")+1:]); len(fields) > 0 {
			if at, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
				s.Time = time.Unix(at, 0).UTC()
			}
		}
		break
	}
	return s
}

// text returns the message of the commit in the form of package review.
func (c owned) text() review.Commit {
	_, message, _ := strings.Cut(string(c.content), "\n\n")
	return review.Commit{Message: message, Merge: len(c.parents) > 1}
}

// texts returns the messages of commits in the form of package review.
func texts(commits []owned) (all []review.Commit) {
	for _, c := range commits {
		all = append(all, c.text())
	}
	return all
}

// shownCommits converts the first maxCommits commits into the form of a reply.
func shownCommits(commits []owned) []control.SummaryCommit {
	shown := []control.SummaryCommit{}
	for _, c := range commits[:min(len(commits), maxCommits)] {
		shown = append(shown, c.shown())
	}
	return shown
}
