package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// lockTime is the age above which a lock file of git is assumed to belong to a process that has died.
const lockTime = 10 * time.Minute

// carried examines the session repository in the directory home, and repairs it if repairs were requested. If the
// session is mounted, carried repairs nothing, because the session's daemon may be writing to the repository.
func (d *doctor) carried(ctx context.Context, id, home string, r statedir.Record, mounted bool) {
	if !statedir.HasSessionRepo(home) {
		return
	}
	// The function look opens the repository again for each examination, so that each examination sees the current packs
	// and refs.
	look := func() (session.Health, error) {
		repo, err := d.homes.OpenSessionRepo(home, r, false)
		if err != nil {
			return session.Health{}, err
		}
		defer repo.Close()
		return repo.Check(ctx, d.deep)
	}
	h, err := look()
	// If the repository of a mounted session looks damaged, examine it a second time: the daemon may have changed a ref or
	// repacked during the first examination.
	if mounted && err == nil && !h.Whole() {
		h, err = look()
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		d.wrong(id, "the files of the mount are not affected; artifactfs session resume restores pushed checkpoints",
			"checkpoints cannot be read: %v", err)
		return
	}
	if len(h.Broken) > 0 {
		d.broken(ctx, home, r, h.Broken, mounted)
		// The repair may have changed which objects are missing, so examine the repository again.
		if again, err := look(); d.repair && err == nil {
			h = again
		}
	}
	d.sessionLocks(h.Locks)
	bad := len(h.Broken) > 0
	for _, l := range h.Lost {
		bad = true
		d.wrong(id, "the files of the mount are not affected; artifactfs session resume restores pushed checkpoints",
			"ref %s has missing or damaged objects: %v", l.Ref, l.Err)
	}
	for _, p := range h.Packs {
		if p.Junk && !mounted {
			d.repairProblem(p.Path, p.What, "removes the file", func() error { return os.Remove(p.Path) })
		} else if !p.Junk {
			bad = true
			d.wrong(p.Path, "the files of the mount are not affected; artifactfs session resume restores pushed checkpoints",
				"%s", p.What)
		}
	}
	if !bad {
		d.reportUndamaged(id, home, r, h, mounted)
	}
}

// broken reports refs of a session repository whose files do not contain an object ID. If the session is not mounted, a
// repair restores these refs from the recorded state of the pushes.
func (d *doctor) broken(ctx context.Context, home string, r statedir.Record, refs []string, mounted bool) {
	dir := filepath.Join(home, statedir.SessionRepoName)
	what := "refs have invalid contents, as after a power failure: " + strings.Join(refs, ", ")
	if mounted {
		d.warn(dir, "the refs will be repaired at the next push or the next mount", "%s", what)
		return
	}
	d.repairProblem(dir, what, "restores the refs", func() error {
		repo, err := d.homes.OpenSessionRepo(home, r, true)
		if err != nil {
			return err
		}
		defer repo.Close()
		_, err = writeback.Mend(ctx, repo, r.SessionRemoteURL())
		return err
	})
}

// sessionLocks reports lock files that git has left in a session repository, which prevent changes of refs. If repairs
// were requested, it removes the lock files that are older than lockTime.
func (d *doctor) sessionLocks(locks []session.Lock) {
	// A younger lock may belong to a git command that is running.
	for _, l := range locks {
		age := time.Since(l.Since)
		if age < lockTime {
			d.warn(l.Path, "the git command that holds the lock will remove it", "repository is locked since %s",
				l.Since.Format(time.DateTime))
			continue
		}
		what := fmt.Sprintf("lock file was left by a killed git command %s ago; it prevents changes of refs",
			age.Round(time.Minute))
		d.repairProblem(l.Path, what, "removes the lock file", func() error { return os.Remove(l.Path) })
	}
}

// reportUndamaged reports that a session repository is undamaged, and how many of its refs are not on the session
// remote yet.
func (d *doctor) reportUndamaged(id, home string, r statedir.Record, h session.Health, mounted bool) {
	text := fmt.Sprintf("checkpoints are complete: %d", h.Checkpoints)
	if h.Newest != nil {
		text += fmt.Sprintf(", the newest (%s) of %s", h.Newest.ID, h.Newest.Time.Format(time.DateTime))
	}
	far := r.SessionRemoteURL()
	if far == "" || mounted { // the command "artifactfs status" reports the pending refs of a mounted session
		d.ok(id, "%s", text)
		return
	}
	repo, err := d.homes.OpenSessionRepo(home, r, false)
	if err != nil {
		d.wrong(id, "", "%v", err)
		return
	}
	defer repo.Close()
	st, err := writeback.Look(repo, far)
	switch {
	case err != nil:
		d.warn(id, "", "%s; number of pushed checkpoints is unknown: %v", text, err)
	// Pending refs exist only on this host, so they would be lost together with it.
	case st.Pending > 0:
		since := "never pushed completely"
		if !st.LastSync.IsZero() {
			since = "last pushed completely at " + st.LastSync.Format(time.DateTime)
		}
		d.warn(id, "run artifactfs session resume "+r.Session+" to push them", "%s; %d refs are not on %s, %s", text,
			st.Pending, far, since)
	default:
		d.ok(id, "%s; all are on %s", text, far)
	}
}

// farSessions returns the records of all sessions that have a session remote, by the URL of the session remote without
// secrets. It skips sessions whose records cannot be read.
func farSessions(h statedir.Homes) map[string][]statedir.Record {
	all := map[string][]statedir.Record{}
	ids, _, err := h.IDs()
	if err != nil {
		return all
	}
	for _, id := range ids {
		home := filepath.Join(h.Dir(), id)
		r, err := statedir.ReadRecord(home)
		if err != nil {
			continue
		}
		if url := r.SessionRemoteURL(); url != "" {
			all[url] = append(all[url], r)
		}
	}
	return all
}

// sessionRemote checks whether the session remote at url accepts pushes, and which of the given sessions were never
// pushed to it. The check pushes nothing.
func (d *doctor) sessionRemote(ctx context.Context, url string, sessions []statedir.Record) {
	var names []string
	var prefixes []string
	// The refs with these prefixes show which sessions were pushed before.
	for _, r := range sessions {
		names = append(names, r.Session)
		prefixes = append(prefixes, session.MetaRef(r.Session))
	}
	slices.Sort(names)
	of := "session remote of " + strings.Join(names, ", ")
	remote, err := transport.Open(url, transport.Options{Connect: remoteTime / 2, Stall: remoteTime})
	url = statedir.WithoutSecrets(url)
	if err != nil {
		e := fault.Explain("open", url, err)
		d.warn(url, e.Hint, "%s: %s", of, e.Cause)
		return
	}
	defer remote.Close()
	start := time.Now()
	// Opening a push authenticates this user and lists the refs, but changes nothing.
	push, err := remote.OpenPush(ctx, prefixes)
	if err != nil {
		e := fault.Explain("push to", url, fault.Remote(err))
		d.warn(url, e.Hint, "%s: push is not possible: %s", of, e.Cause)
		return
	}
	defer push.Close()
	// The objects of a session cannot be pushed to a repository with another object format.
	for _, r := range sessions {
		if f, err := object.ParseFormat(r.Format); err == nil && f != push.Format {
			d.warn(url, "choose a repository with the same object format for artifactfs mount --session-remote",
				"%s: object format is %v, that of session %s is %v", of, push.Format, r.Session, f)
			return
		}
	}
	there := map[string]bool{}
	for _, ref := range push.Refs {
		there[ref.Name] = true
	}
	var lacks []string
	for _, name := range names {
		if !there[session.MetaRef(name)] {
			lacks = append(lacks, name)
		}
	}
	text := fmt.Sprintf("%s: pushes are accepted (%v)", of, time.Since(start).Round(time.Millisecond))
	if len(lacks) > 0 {
		text += "; nothing was pushed yet of " + strings.Join(lacks, ", ")
	}
	d.ok(url, "%s", text)
}
