package receive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/gate"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
)

// checks is the maximum number of times that a push is checked again because garbage was collected in the meantime.
const checks = 2

// decide makes the updates visible that are allowed. The result has an error for each update that failed.
func (p *Push) decide(ctx context.Context, updates []records.RefUpdate, atomic bool) []error {
	results := p.results(ctx, updates, atomic)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused, p.failures = reasons(updates, results), map[string]error{}
	for i, err := range results {
		if err != nil {
			p.failures[updates[i].Name] = err
		}
	}
	return results
}

// reasons returns a text with a line for each update that failed.
func reasons(updates []records.RefUpdate, results []error) string {
	var lines []string
	for i, err := range results {
		if err != nil {
			lines = append(lines, updates[i].Name+": "+oneLine(err.Error()))
		}
	}
	text := strings.Join(lines, "\n")
	return text[:min(len(text), maxReasons)]
}

// maxReasons is the maximum size, in bytes, of the reasons in an audit entry.
const maxReasons = 4096

// results does the work of decide, except that it does not record the reasons of failures.
func (p *Push) results(ctx context.Context, updates []records.RefUpdate, atomic bool) []error {
	results := make([]error, len(updates))
	state := access.State{
		Owner:  sync.OnceValues(func() (access.Owner, error) { return access.OwnerOf(ctx, p.r.o.Records.Repos, p.repoID) }),
		Format: p.copy.Repo.ObjectFormat,
	}
	if atomic {
		state.Together = updates
	}
	large := p.tooLarge(ctx)
	for i, u := range updates {
		if results[i] = large; large == nil || u.Removes() {
			results[i] = p.check(ctx, u, state)
		}
	}
	verdict, err := gate.Check(ctx, gate.Push{
		Git: p.r.git, Dir: p.copy.Dir, Format: p.copy.Repo.ObjectFormat, Token: p.token, Updates: updates, Forced: p.forced,
		Now: time.Now(),
		Unpacked: func(ctx context.Context) (string, map[string]string, error) {
			u, err := p.from.Unpacked(ctx)
			return u.Dir, u.Refs, err
		},
	}, results)
	if err != nil {
		return fill(results, p.fail(err))
	}
	failed := func(err error) bool { return err != nil }
	// git does not pass on updates that it has refused itself, such as one whose objects are missing, so there may be
	// fewer updates than commands.
	if atomic && (slices.ContainsFunc(results, failed) || len(updates) < len(p.commands.Updates)) {
		return fill(results, records.ErrAtomic)
	}
	var wanted []records.RefUpdate
	for i, u := range updates {
		if results[i] == nil {
			wanted = append(wanted, u)
		}
	}
	if len(wanted) == 0 {
		return results
	}
	if err := p.allow(ctx, wanted); err != nil {
		return fill(results, err)
	}
	detail := ""
	for _, u := range verdict.Used {
		detail += u.String() + "\n"
	}
	detail += reasons(updates, results)
	made, err := p.make(ctx, p.merges(verdict, wanted),
		records.Push{Updates: wanted, Atomic: atomic, Assumed: verdict.Assumed, Detail: strings.TrimSpace(detail)})
	var crowded records.TokenRefsError
	switch {
	case errors.Is(err, errMissing):
		return fill(results, errMissing)
	case errors.Is(err, records.ErrChanged):
		return fill(results, ErrChanged)
	case errors.As(err, &crowded):
		return fill(results, crowded)
	case err != nil:
		return fill(results, p.fail(err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := 0
	for i := range results {
		if results[i] != nil {
			continue
		}
		if results[i] = made[next]; results[i] == nil {
			p.done = append(p.done, updates[i])
		}
		next++
	}
	return results
}

// fill sets err as the result of each update that has no error yet.
func fill(results []error, err error) []error {
	for i := range results {
		if results[i] == nil {
			results[i] = err
		}
	}
	return results
}

// check returns an error if an update must be refused because of its name or the rules of the token.
func (p *Push) check(ctx context.Context, u records.RefUpdate, state access.State) error {
	// git accepts refs directly in refs/, such as refs/stash, only if it creates them.
	if !refname.Valid(u.Name) || strings.Count(u.Name, "/") < 2 {
		return errors.New("funny refname")
	}
	if u.Creates() {
		if err := inTheWay(u.Name); err != nil {
			return err
		}
	}
	state.Forced = func() (bool, error) { return p.forced(ctx, u) }
	err := access.Allow(p.token, u, state)
	var refused access.Refused
	switch {
	case errors.As(err, &refused):
		return refused
	case err != nil:
		return p.fail(err)
	}
	if strings.HasPrefix(u.Name, "refs/heads/") && !u.Removes() {
		kind, err := p.kind(ctx, u.New)
		if err != nil {
			return p.fail(err)
		}
		if kind != object.Commit.String() {
			return fmt.Errorf("a branch cannot point to a %s", kind)
		}
	}
	return nil
}

// shared are the refs of the repository that belong to no session. Like the directories in which sessions have refs,
// they have names of three components.
var shared = []string{session.OwnerRef, approval.PolicyRef, locks.Ref}

// inTheWay returns an error if a new ref with this name would prevent other refs from being created, or clones from
// fetching.
func inTheWay(name string) error {
	switch {
	case !refname.Fits(name):
		return fmt.Errorf("name of a ref can have at most %d bytes, and each of its components %d", refname.MaxName,
			refname.MaxComponent)
	case slices.Contains(shared, name):
		return nil
	case strings.HasPrefix(name, session.Prefix) && strings.Count(name, "/") == 2:
		return errors.New("refs below " + session.Prefix + " have the name of a session")
	}
	for _, ref := range shared {
		if strings.HasPrefix(name, ref+"/") {
			return errors.New("no ref can be below " + ref)
		}
	}
	return nil
}

// forced reports whether an update is not a fast-forward. An update that involves an object other than a commit is
// always forced.
func (p *Push) forced(ctx context.Context, u records.RefUpdate) (bool, error) {
	ahead, err := merge.IsAncestor(p.r.git.In(p.copy.Dir).Runner(ctx), u.Old, u.New)
	if gitcmd.Exited(err, 128) {
		return true, nil
	}
	return !ahead, err
}

// kind returns the type of an object. It first searches the index of the pushed pack, which usually contains the tips
// of branches, because starting git takes longer.
func (p *Push) kind(ctx context.Context, id string) (string, error) {
	if t, err := p.pushedKind(id); err == nil {
		return t, nil
	}
	out, err := p.r.git.In(p.copy.Dir).Output(ctx, "", "cat-file", "-t", id)
	return strings.TrimSpace(string(out)), err
}

func (p *Push) pushedKind(id string) (string, error) {
	format, err := object.ParseFormat(p.copy.Repo.ObjectFormat)
	if err != nil {
		return "", err
	}
	parsed, err := object.ParseIDOf(format, id)
	if err != nil {
		return "", err
	}
	if p.packs == nil { // open the packs once, because a push can have 100,000 branches
		if p.packs, err = odb.Open(p.copy.Dir+"/objects", format); err != nil {
			return "", err
		}
	}
	t, _, err := p.packs.Size(parsed)
	return t.String(), err
}

// merges returns the updates of branches that merge sessions: those that an approval has allowed, and the one of an act
// that the server makes.
func (p *Push) merges(v gate.Verdict, updates []records.RefUpdate) (list []events.Merge) {
	for _, u := range updates {
		m := events.Merge{Ref: u.Name, Session: p.merged[u.Name]}
		for _, use := range v.Used {
			if use.Ref == u.Name {
				m.Session, m.Request = use.Session, use.Request
			}
		}
		if m.Session != "" && strings.HasPrefix(u.Name, "refs/heads/") {
			list = append(list, m)
		}
	}
	return list
}

// make stores the pack of a push and changes the refs. If it fails, no change is visible. The caller has set the fields
// of push that depend on its decision.
func (p *Push) make(ctx context.Context, merges []events.Merge, push records.Push) ([]error, error) {
	push.RepoID, push.TokenID, push.Version, push.Cause = p.repoID, p.token.ID, p.copy.Repo.Version, p.cause
	if len(p.token.Rules) != 0 {
		push.MostRefs = p.r.o.MostRefs
	}
	updates := push.Updates
	// The pack is stored and the events are made at the same time, because storing waits for the disk or the network,
	// and Events runs git.
	var making sync.WaitGroup
	if p.r.o.Events != nil {
		making.Go(func() { push.Events = p.r.o.Events(ctx, p.copy.Dir, p.copy.Repo, p.token, updates, merges) })
	}
	pack, err := p.store(ctx, updates)
	making.Wait()
	if err != nil {
		return nil, err
	}
	push.Pack = pack
	for attempt := 0; ; attempt++ {
		results, err := p.r.o.Records.Repos.Push(ctx, push)
		if err == nil {
			p.pack = pack
		}
		if !errors.Is(err, records.ErrCollected) || attempt == checks {
			return results, err
		}
		if push.Version, err = p.checkAgain(ctx, updates); err != nil {
			return nil, err
		}
	}
}

// allow returns an error if the namespace would exceed its quotas.
func (p *Push) allow(ctx context.Context, updates []records.RefUpdate) error {
	var more records.Amounts
	for _, u := range updates {
		switch {
		case u.Removes():
			more.Refs--
		case u.Creates():
			more.Refs++
		}
	}
	added, err := p.copy.Added()
	for _, hash := range added {
		for _, x := range []string{".pack", ".idx"} {
			if info, statErr := os.Stat(filepath.Join(p.copy.Packs(), "pack-"+hash+x)); statErr == nil {
				more.Bytes += info.Size()
			}
		}
	}
	if err == nil {
		err = p.r.o.Quotas.Add(ctx, p.copy.Repo.Namespace, more)
	}
	if exceeded := (quota.Exceeded{}); errors.As(err, &exceeded) {
		return exceeded
	}
	return p.failIf(err)
}

// store stores the pack that git has received. It returns nil if git has received no pack, or a pack that the
// repository has already.
func (p *Push) store(ctx context.Context, updates []records.RefUpdate) (*records.Pack, error) {
	if !slices.ContainsFunc(updates, func(u records.RefUpdate) bool { return !u.Removes() }) {
		return nil, nil
	}
	added, err := p.copy.Added()
	if err != nil || len(added) == 0 {
		return nil, err
	}
	if len(added) > 1 {
		return nil, fmt.Errorf("store push: git has received %d packs", len(added))
	}
	pack, err := p.r.o.Replicas.Store(ctx, p.copy.Packs(), added[0])
	return &pack, err
}

// checkAgain checks that the repository still has the objects that the push needs, and returns the version that was
// checked. git runs in a new copy, in which it finds only objects of packs that are listed now.
func (p *Push) checkAgain(ctx context.Context, updates []records.RefUpdate) (records.Version, error) {
	now, err := p.r.o.Replicas.Acquire(ctx, p.repoID)
	if err != nil {
		return records.Version{}, err
	}
	defer now.Release()
	fresh, err := now.Copy(ctx)
	if err != nil {
		return records.Version{}, err
	}
	defer fresh.Remove()
	if err := p.copy.LinkAdded(fresh); err != nil {
		return records.Version{}, err
	}
	var tips strings.Builder
	for _, u := range updates {
		if !u.Removes() {
			tips.WriteString(u.New + "\n")
		}
	}
	_, err = p.r.git.In(fresh.Dir).Output(ctx, tips.String(), "rev-list", "--objects", "--stdin", "--not",
		"--all", "--quiet")
	if gitcmd.Exited(err, 128) || gitcmd.Exited(err, 1) {
		return records.Version{}, errMissing
	} else if err != nil {
		return records.Version{}, err
	}
	return fresh.Repo.Version, nil
}
