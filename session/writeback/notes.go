package writeback

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// Notes are the refs that all sessions on a session remote share. Each push of a notes ref is a merge of the remote's
// notes and the session's, by union (mergeNote), and a compare-and-swap. A session that loses the race also publishes
// its notes under a name of its own (session.DivergedRef), and every session that pushes merges the notes of all such
// names. So a session loses at most two more races: the second winner has read the session remote after that name
// existed. Notes are pushed after everything else, so that no other ref waits for them.

const (
	// maxNote is the maximum size of a note in bytes.
	maxNote = 16 << 20
	// notesTries is the number of pushes of a notes ref in a round once its diverged name exists; before that, it is
	// one.
	notesTries = 5
	// notesPause is the average delay before the second push. It doubles.
	notesPause = 40 * time.Millisecond
	// notesRest is the average delay between rounds while other sessions win the races.
	notesRest = 300 * time.Millisecond
)

// notesMove is a notes ref whose value differs between the Repo (mine) and the session remote (there).
type notesMove struct {
	ref         string
	mine, there object.ID
	others      []object.ID // values of the diverged names of ref that other sessions published
}

// compareNotes compares a notes ref and reports whether it has to be merged. A ref that was removed in the mount stays
// on the session remote, because other sessions use it.
func (q *Queue) compareNotes(ref string, mine, there object.ID, theirs map[string]object.ID, l *ledger, c *comparison) bool {
	switch {
	case mine.IsZero():
		delete(l.refs, ref)
		return false
	case there == mine:
		l.learn(ref, mine)
		c.updates = append(c.updates, q.undiverge(ref, theirs, l)...)
		return false
	case l.refs[ref].acked == mine: // other sessions have committed notes on top of this session's
		c.updates = append(c.updates, q.undiverge(ref, theirs, l)...)
	}
	c.notes = append(c.notes, notesMove{ref: ref, mine: mine, there: there})
	return true
}

// setAside returns the values of the diverged names of a notes ref that other sessions published.
func (q *Queue) setAside(push *thin.Push, ref string) (others []object.ID) {
	if push.Thin() { // only this session writes the refs of a thin session remote
		return nil
	}
	for _, r := range push.Refs {
		rest, diverged := strings.CutPrefix(r.Name, session.DivergedPrefix)
		name, of, _ := strings.Cut(rest, "/")
		if diverged && name != q.o.Session && "refs/"+of == ref {
			others = append(others, r.ID)
		}
	}
	return others
}

// notes merges and pushes notes refs, after all other refs were pushed. It uses push for the first ref and opens new
// pushes for the others. again reports that another push has to create or remove diverged names of this session.
func (t *pushAttempt) notes(ctx context.Context, push *thin.Push, moves []notesMove, l *ledger,
	local map[string]object.ID) (again bool, err error) {
	q := t.q
	defer q.o.Repo.Working()()
	for _, n := range moves {
		if r, refused := q.refused[n.ref]; refused && r.id == n.mine && time.Now().Before(r.until) {
			continue
		}
		// Only the first ref uses a push whose refs are known; pushNotes opens the others itself.
		if push != nil {
			n.others = q.setAside(push, n.ref)
		}
		done, err := q.pushNotes(ctx, push, n, l, local)
		push = nil
		if err != nil {
			return false, fmt.Errorf("merge notes %s: %w", n.ref, err)
		}
		t.busy = t.busy || !done
		other := l.refs[session.DivergedRef(q.o.Session, n.ref)]
		// Another push removes the diverged name, or creates it.
		again = again || done && !other.acked.IsZero() || !done && !q.outrun
	}
	q.outrun = t.busy
	return again, nil
}

// pushNotes merges and pushes a notes ref until the push succeeds or is refused. It returns false if other sessions won
// every race.
func (q *Queue) pushNotes(ctx context.Context, push *thin.Push, n notesMove, l *ledger, local map[string]object.ID) (bool, error) {
	pause, tries := notesPause, 1
	if q.outrun { // the diverged name exists
		tries = notesTries
	}
	for try := 1; ; try++ {
		if push == nil {
			opened, err := q.openPush(ctx, []string{n.ref, session.DivergedPrefix})
			if err != nil {
				return false, err
			}
			defer opened.Close()
			push, n.there, n.others = opened, object.ID{}, q.setAside(opened, n.ref)
			for _, ref := range opened.Refs {
				if ref.Name == n.ref {
					n.there = ref.ID
				}
			}
		}
		// Merge again for each push: the value on the session remote has changed since the last one.
		merged, load, err := q.mergeNotes(ctx, n)
		if err != nil {
			return false, err
		}
		var refused *transport.Rejected
		if merged != n.there {
			req := transport.PushRequest{Updates: []transport.RefUpdate{{Name: n.ref, Old: n.there, New: merged}}}
			var contained thin.Load
			if push.Thin() {
				if contained, err = q.contained(ctx, push, []update{{n.ref, req.Updates[0]}}, load); err != nil {
					return false, err
				}
			} else if len(load.objects) > 0 {
				req.Pack = packer(q.o.Repo, load.objects)
			}
			results, err := q.sendPush(ctx, push, req, contained)
			if err != nil {
				return false, err
			}
			errors.As(results[0], &refused)
		}
		switch {
		case refused == nil:
			l.learn(n.ref, n.mine) // the value on the session remote contains n.mine
			delete(q.refused, n.ref)
			if merged != n.mine && q.o.Notes != nil {
				q.bringNotes(ctx, n, merged, l, local)
			}
			return true, nil
		// Not a lost race: another push of the same value would be refused as well.
		case refused.Kind != transport.RejectMoved:
			q.refuse(n.ref, n.mine, refused)
			return true, nil
		case try == tries:
			return false, nil
		}
		push = nil
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		pause *= 2
	}
}

// bringNotes copies merged notes into the mount and the Repo. If the user has moved the ref meanwhile, the next round
// tries again.
func (q *Queue) bringNotes(ctx context.Context, n notesMove, merged object.ID, l *ledger, local map[string]object.ID) {
	err := q.o.Notes(ctx, n.ref, n.mine, merged)
	// The RefCopier would copy it too, but only later, and the queue would push once more.
	if err == nil {
		err = q.o.Repo.Update(ctx, []session.RefChange{{Name: n.ref, Old: n.mine, New: merged}})
	}
	if err != nil {
		q.log.Info("fetch notes of other sessions", zap.String("session", q.o.Session), zap.String("ref", n.ref), zap.Error(err))
		return
	}
	l.learn(n.ref, merged)
	local[n.ref] = merged
}

// mergeNotes returns a commit that contains the notes of this session, of the session remote and of the diverged names,
// and the objects of that commit that the session remote lacks.
func (q *Queue) mergeNotes(ctx context.Context, n notesMove) (merged object.ID, load *pushSet, err error) {
	merged = n.mine
	if !n.there.IsZero() {
		if err := q.bring(ctx, n.there, n.mine); err != nil {
			return merged, nil, err
		}
		switch {
		// The session remote has these notes and more.
		case q.contains(n.there, n.mine):
			return n.there, nil, nil
		case q.contains(n.mine, n.there):
		default:
			if merged, err = q.unionNotes(ctx, n.mine, n.there); err != nil {
				return merged, nil, err
			}
		}
	}
	tips := []object.ID{n.there}
	for _, other := range n.others {
		if q.contains(merged, other) {
			continue
		}
		// The other session may have removed its diverged name.
		if err := q.bring(ctx, other, n.there); err != nil {
			q.log.Debug("fetch notes of another session", zap.String("session", q.o.Session), zap.Error(err))
			continue
		}
		if merged, err = q.unionNotes(ctx, merged, other); err != nil {
			return merged, nil, err
		}
		tips = append(tips, other)
	}
	tips = slices.DeleteFunc(tips, object.ID.IsZero)
	have, err := hadOf(ctx, q.o.Repo, tips)
	if err != nil {
		return merged, nil, err
	}
	maps.Copy(have, q.sent)
	load, err = newPushSet(ctx, q.o.Repo, []object.ID{merged}, have)
	return merged, load, err
}

// notesDir is a git directory inside the Repo. Stock git merges notes in it, because it merges only refs below
// refs/notes/, and in the Repo itself those are the user's.
const notesDir = "artifactfs.notes"

// unionNotes merges two values of a notes ref with stock git; notes that both sides changed are merged by mergeNote. The
// objects are written to the Repo.
func (q *Queue) unionNotes(ctx context.Context, ours, theirs object.ID) (object.ID, error) {
	dir := filepath.Join(q.o.Repo.Dir(), notesDir)
	if err := os.RemoveAll(dir); err != nil { // left by a crash
		return object.ID{}, err
	}
	defer os.RemoveAll(dir)
	// The directory is a bare repository with two refs and the object format of the Repo.
	config := "[core]\n\trepositoryformatversion = 1\n\tbare = true\n"
	if f := q.o.Repo.Format(); f != object.SHA1 {
		config += "[extensions]\n\tobjectformat = " + f.String() + "\n"
	}
	for name, text := range map[string]string{
		"HEAD": "ref: refs/heads/none\n", "config": config, notesPrefix + "ours": ours.String() + "\n",
		notesPrefix + "theirs": theirs.String() + "\n",
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return object.ID{}, err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return object.ID{}, err
		}
	}
	git := func(args ...string) (string, error) { return q.notesGit(ctx, dir, args...) }
	_, err := git("notes", "--ref="+notesPrefix+"ours", "merge", "-q", "-s", "manual", notesPrefix+"theirs")
	// git notes merge leaves one file per conflicting note in NOTES_MERGE_WORKTREE.
	conflicts, readErr := os.ReadDir(filepath.Join(dir, "NOTES_MERGE_WORKTREE"))
	if err != nil && (readErr != nil || len(conflicts) == 0) {
		return object.ID{}, err
	}
	if err != nil {
		var base object.ID
		// Without a common ancestor, base stays zero.
		if text, err := git("merge-base", ours.String(), theirs.String()); err == nil {
			if base, err = object.ParseID(text); err != nil {
				return object.ID{}, err
			}
		}
		for _, file := range conflicts {
			var sides [3][]byte
			for i, side := range []object.ID{base, ours, theirs} {
				if sides[i], err = q.note(side, file.Name()); err != nil {
					return object.ID{}, err
				}
			}
			merged := mergeNote(sides[0], sides[1], sides[2])
			if err := os.WriteFile(filepath.Join(dir, "NOTES_MERGE_WORKTREE", file.Name()), merged, 0o644); err != nil {
				return object.ID{}, err
			}
		}
		if _, err := git("notes", "merge", "-q", "--commit"); err != nil {
			return object.ID{}, err
		}
	}
	return session.NewRefDir(dir, q.o.Repo.Format()).Ref(notesPrefix + "ours")
}

// note returns the text of one note in the notes commit tip, with a newline at its end; nil: there is none. name is the
// annotated object's id in hex. Git may split it into directories of two digits each (fanout).
func (q *Queue) note(tip object.ID, name string) ([]byte, error) {
	if tip.IsZero() {
		return nil, nil
	}
	c, err := q.o.Repo.Commit(tip)
	if err != nil {
		return nil, err
	}
	for tree := c.Tree; ; {
		entries, err := q.o.Repo.Tree(tree)
		if err != nil {
			return nil, err
		}
		// Either the note itself, or the directory that is named after the first two digits.
		i := slices.IndexFunc(entries, func(e object.TreeEntry) bool {
			return e.Name == name || e.Mode == object.ModeDir && len(e.Name) == 2 && strings.HasPrefix(name, e.Name)
		})
		if i < 0 {
			return nil, nil
		}
		if e := entries[i]; e.Mode == object.ModeDir {
			tree, name = e.ID, name[2:]
			continue
		}
		_, text, err := q.o.Repo.Get(entries[i].ID, maxNote)
		if err != nil {
			return nil, err
		}
		return append(bytes.TrimRight(text, "\n"), '\n'), nil
	}
}

// notesGit runs a git command in notesDir, with the Repo's object directory, and returns its output without newlines at
// the end.
func (q *Queue) notesGit(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := gitcmd.Isolated(ctx, append([]string{"--git-dir=" + dir, "-c", "core.fsync=all"}, args...)...)
	cmd.Env = append(append(cmd.Env, "GIT_OBJECT_DIRECTORY="+filepath.Join(q.o.Repo.Dir(), "objects")), gitcmd.Identity()...)
	out, err := gitcmd.Output(cmd)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// mergeNote merges a note that both sides changed. If all versions are JSON objects, as artifactfs session note writes
// them, it merges member by member against base, so that an old value does not reappear; ours wins where both sides
// changed a member. Any other note becomes the sorted union of lines, as by git notes merge -s cat_sort_uniq.
func mergeNote(base, ours, theirs []byte) []byte {
	var b, o, t map[string]json.RawMessage
	if json.Unmarshal(ours, &o) != nil || json.Unmarshal(theirs, &t) != nil || o == nil || t == nil ||
		len(base) > 0 && json.Unmarshal(base, &b) != nil {
		lines := slices.DeleteFunc(strings.Split(string(ours)+string(theirs), "\n"), func(line string) bool { return line == "" })
		slices.Sort(lines)
		return []byte(strings.Join(slices.Compact(lines), "\n") + "\n")
	}
	for name, value := range o {
		if was, ok := b[name]; !ok || !bytes.Equal(was, value) {
			t[name] = value
		}
	}
	// A member that ours removed and theirs did not change is removed.
	for name, was := range b {
		if _, ok := o[name]; !ok && bytes.Equal(t[name], was) {
			delete(t, name)
		}
	}
	merged, err := json.Marshal(t)
	if err != nil { // decoded JSON can always be encoded
		return ours
	}
	return append(merged, '\n')
}
