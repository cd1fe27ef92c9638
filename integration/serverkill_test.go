package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

var (
	// serverKills is how often a node is killed. After each six of these kills, PostgreSQL and S3 have each been killed
	// about once, too.
	serverKills  = envInt("AFS_SERVER_KILLS", 8)
	serverPushes = envInt("AFS_SERVER_PUSHES", 16) // clients that push with stock git
	serverMounts = envInt("AFS_SERVER_MOUNTS", 4)  // clients that push the session of a mount
)

// In this file, a push is acknowledged if git push or artifactfs sync has exited with code 0. A push that is not
// acknowledged may or may not have changed the refs.

// TestServerOutlivesKills kills nodes, PostgreSQL and S3 at random moments while clients push, fork and delete. At the
// end the repositories have every acknowledged change and lack no object, and packs without a repository are removed.
func TestServerOutlivesKills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kills, pushes, mounts := serverKills, serverPushes, serverMounts
	if await.Race { // the race detector makes the server several times slower
		kills, pushes, mounts = min(kills, 10), min(pushes, 12), min(mounts, 2)
	}
	// A push that takes longer than the time "unused" can fail, because its pack may be removed before it is listed.
	l := newServerTrial(w, newCluster(w, 3, "--upkeep", "interval=2s,check=3s,crowd=5,grace=12s,unused=12s"))
	l.run(kills, pushes, mounts)
	l.swept()
}

// TestLoneServerOutlivesKills does the same with one node, which stores everything in a directory.
func TestLoneServerOutlivesKills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newServerTrial(w, newLoneServer(w, "--upkeep", "interval=1s,check=1s,crowd=5,grace=5s,unused=10s"))
	l.run(max(2, serverKills/3), max(2, serverPushes/4), 1)
}

// newServerTrial creates repositories with one commit each.
func newServerTrial(w *world, c *cluster) *serverTrial {
	w.Helper()
	l := &serverTrial{w: w, c: c, failures: map[string]int{}}
	l.makeRepos(8)
	return l
}

// run starts clients, kills nodes, and checks the repositories at the end.
func (l *serverTrial) run(kills, pushes, mounts int) {
	w := l.w
	w.Helper()
	seed := uint64(modelSeed)
	w.Logf("seed %d (AFS_MODEL_SEED), %d kills (AFS_SERVER_KILLS)", seed, kills)
	ctx, stop := context.WithCancel(w.context())
	var all sync.WaitGroup
	w.Cleanup(func() { // cleanups run in reverse order, so this is before the nodes are stopped
		stop()
		all.Wait()
		w.ok("unmount", "--all")
	})
	for i := range pushes {
		p := l.newPusher(i, rand.New(rand.NewPCG(seed, uint64(i))))
		all.Go(func() { p.run(ctx) })
	}
	for i := range mounts {
		m := &trialMount{l: l, repo: l.repos[i%len(l.repos)], name: fmt.Sprint("m", i), dir: w.place("m")}
		l.mounts = append(l.mounts, m)
		all.Go(func() { m.run(ctx) })
	}
	f := &forker{l: l, rnd: rand.New(rand.NewPCG(seed, 1000)), deleted: map[string]bool{}}
	all.Go(func() { f.run(ctx) })
	start := time.Now()
	l.killAll(kills, rand.New(rand.NewPCG(seed, 2000)))
	// On a busy machine, a client may not have pushed anything when the last node has been killed.
	await.Until(w, "enough changes are acknowledged", func() bool {
		idle := slices.ContainsFunc(l.mounts, func(m *trialMount) bool { return !m.any.Load() })
		return !idle && l.acked.Load() >= int64(len(l.pushers))
	})
	stop()
	all.Wait()
	for _, n := range l.c.nodes {
		check2(w, n.ready())
	}
	w.Logf("the clients worked for %v", time.Since(start))
	l.report()
	l.judge(f)
}

// serverTrial is one test with clients and kills.
type serverTrial struct {
	w       *world
	c       *cluster
	repos   []*trialRepo
	pushers []*pusher
	mounts  []*trialMount
	acked   atomic.Int64

	mu       sync.Mutex
	failures map[string]int // texts of failed commands, without names and numbers
}

// trialRepo is a repository on the server.
type trialRepo struct {
	name, url, token string
}

const trialSpace = "trial"

// makeRepos creates repositories with one commit each.
func (l *serverTrial) makeRepos(n int) {
	l.w.Helper()
	api := l.c.api()
	dir := l.w.place("first")
	l.w.git("", "init", "-q", "-b", "main", dir)
	check2(l.w, os.WriteFile(filepath.Join(dir, "README"), []byte("first\n"), 0o644))
	l.w.git(dir, "add", "README")
	l.w.git(dir, "commit", "-qm", "First")
	for i := range n {
		made, err := api.CreateRepo(l.w.context(), trialSpace, client.CreateRepo{Name: fmt.Sprint("repo", i)})
		check2(l.w, err)
		_, err = gitAs(l.w.context(), dir, made.Token, "push", "-q", made.Remote, "main")
		check2(l.w, err)
		l.repos = append(l.repos, &trialRepo{made.Name, made.Remote, made.Token})
	}
}

// context returns the context of the world's test.
func (w *world) context() context.Context { return w.TB.Context() }

// numbers matches the parts of errors that differ between two failures of one kind. It does not match the status of
// HTTP.
var numbers = regexp.MustCompile(`[0-9a-f]{12,}|\b[0-9]{1,2}\b|[0-9]{4,}|(repo|fork)[0-9]+`)

// failed counts a failure by its text.
func (l *serverTrial) failed(err error) {
	text := numbers.ReplaceAllString(err.Error(), "N")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures[text[:min(len(text), 200)]]++
}

// killAll kills nodes one after the other at random moments, and sometimes PostgreSQL or S3. It returns when all of
// them run again.
func (l *serverTrial) killAll(kills int, rnd *rand.Rand) {
	l.w.Helper()
	var restarts sync.WaitGroup
	failed := make(chan error, kills)
	busy := make([]atomic.Bool, len(l.c.nodes))
	for i := 0; i < kills; {
		pause(l.w.context(), time.Duration(100+rnd.IntN(900))*time.Millisecond)
		switch {
		case l.c.pg == nil: // a lone server
		case i%6 == 3:
			check2(l.w, l.c.pg.Kill())
			pause(l.w.context(), time.Duration(rnd.IntN(500))*time.Millisecond)
			check2(l.w, l.c.pg.Restart())
		case i%6 == 5:
			l.c.s3.Kill()
			pause(l.w.context(), time.Duration(rnd.IntN(500))*time.Millisecond)
			l.c.s3.Run(l.w)
		}
		k := rnd.IntN(len(l.c.nodes))
		down := time.Duration(rnd.IntN(600)) * time.Millisecond
		if !busy[k].CompareAndSwap(false, true) {
			continue // the node is being restarted
		}
		n := l.c.nodes[k]
		n.kill()
		i++
		restarts.Go(func() {
			defer busy[k].Store(false)
			pause(context.Background(), down)
			if err := n.restart(); err != nil {
				failed <- err
			}
		})
	}
	restarts.Wait()
	select {
	case err := <-failed:
		l.w.Fatalf("restart a node: %v", err)
	default:
	}
}

// pause waits for the duration d, or until ctx ends. The tests use it for random delays only, not to wait for a
// condition.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// pusher is the only client that pushes to its branch. Every commit is a child of the previous commit, so a push
// contains the commits of all earlier pushes. Half of the pushers push a second ref in the same atomic push.
type pusher struct {
	l    *serverTrial
	repo *trialRepo
	rnd  *rand.Rand
	dir  string
	refs []string

	sent []string // commits in the order in which they were made
	last int      // index in sent of the newest acknowledged commit; -1: none was acknowledged
}

func (l *serverTrial) newPusher(i int, rnd *rand.Rand) *pusher {
	l.w.Helper()
	p := &pusher{l: l, repo: l.repos[i%len(l.repos)], rnd: rnd, dir: l.w.place("p"),
		refs: []string{fmt.Sprint("refs/heads/p", i)}, last: -1}
	if i%2 == 0 {
		p.refs = append(p.refs, fmt.Sprint("refs/notes/p", i))
	}
	l.w.git("", "init", "-q", "-b", "main", p.dir)
	l.pushers = append(l.pushers, p)
	return p
}

// run pushes until ctx ends. It does not interrupt a push.
func (p *pusher) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		if err := p.commit(n); err != nil {
			p.l.w.Errorf("commit: %v", err)
			return
		}
		args := []string{"push", "-q", "--atomic", p.repo.url}
		for _, ref := range p.refs {
			args = append(args, "HEAD:"+ref)
		}
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTime)
		_, err := gitAs(limited, p.dir, p.repo.token, args...)
		if err == nil {
			p.last = len(p.sent) - 1
			p.l.acked.Add(1)
			if p.rnd.IntN(4) == 0 {
				p.look(limited)
			}
		} else {
			p.l.failed(err)
			pause(ctx, time.Duration(p.rnd.IntN(100))*time.Millisecond)
		}
		cancel()
	}
}

// commit makes a commit with a new file of up to 64 KiB.
func (p *pusher) commit(n int) error {
	data := make([]byte, 1<<p.rnd.IntN(17))
	for i := range data {
		data[i] = byte('a' + p.rnd.IntN(26))
	}
	if err := os.WriteFile(filepath.Join(p.dir, fmt.Sprint("f", n%8)), data, 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{{"add", "-A"}, {"commit", "-q", "--allow-empty", "-m", fmt.Sprint("Commit ", n)}} {
		if _, err := gittest.Git(context.Background(), p.dir, args...); err != nil {
			return err
		}
	}
	id, err := gittest.Git(context.Background(), p.dir, "rev-parse", "HEAD")
	p.sent = append(p.sent, id)
	return err
}

// look checks that the newest acknowledged push is visible on the node that the proxy selects.
func (p *pusher) look(ctx context.Context) {
	out, err := gitAs(ctx, p.dir, p.repo.token, append([]string{"ls-remote", p.repo.url}, p.refs...)...)
	if err != nil {
		p.l.failed(err)
		return
	}
	for _, err := range p.wrong(refsIn(out)) {
		p.l.w.Errorf("right after a push: %v", err)
	}
}

// refsIn returns the refs that ls-remote or for-each-ref has printed, by their names.
func refsIn(out string) map[string]string {
	refs := map[string]string{}
	for line := range strings.Lines(out) {
		if id, name, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			refs[name] = id
		}
	}
	return refs
}

// wrong compares the refs of the repository with the commits of the pusher, and returns the differences.
func (p *pusher) wrong(refs map[string]string) (found []error) {
	at := map[int]bool{}
	for _, ref := range p.refs {
		i := slices.Index(p.sent, refs[ref])
		at[i] = true
		if i < p.last {
			found = append(found, fmt.Errorf("%s of %s is %q (commit %d of %d), but commit %d was acknowledged", ref,
				p.repo.name, refs[ref], i+1, len(p.sent), p.last+1))
		}
	}
	if len(at) != 1 {
		found = append(found, fmt.Errorf("an atomic push to %v of %s was made in part: %v", p.refs, p.repo.name, refs))
	}
	return found
}

// trialMount is a mount whose session is pushed to the mounted repository.
type trialMount struct {
	l    *serverTrial
	repo *trialRepo
	name string
	dir  string

	saved []string    // commits of acknowledged checkpoints
	any   atomic.Bool // set when saved is not empty
}

// run makes checkpoints until ctx ends.
func (m *trialMount) run(ctx context.Context) {
	for {
		err := m.afs(nil, "mount", m.repo.url, m.dir, "--session", m.name, "--session-remote", m.repo.url, "--checkpoint",
			"off", "--history", "none", "--prefetch", "none")
		if err == nil {
			break
		}
		m.l.failed(err)
		if ctx.Err() != nil {
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
	for n := 0; ctx.Err() == nil; n++ {
		if err := os.WriteFile(filepath.Join(m.dir, "work"), fmt.Appendf(nil, "state %d\n", n), 0o644); err != nil {
			m.l.w.Errorf("write in a mount: %v", err)
			return
		}
		var made struct{ Commit string }
		err := m.afs(&made, "checkpoint", m.dir)
		if err != nil {
			m.l.w.Errorf("checkpoint: %v", err)
			return
		}
		if err = m.afs(nil, "sync", m.dir, "--timeout", "60s"); err != nil {
			m.l.failed(err)
			continue
		}
		m.saved = append(m.saved, made.Commit)
		m.any.Store(true)
		m.l.acked.Add(1)
	}
}

// afs runs the program. If the argument into is not nil, it decodes the JSON output into it.
func (m *trialMount) afs(into any, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	if into != nil {
		args = append(args, "--json")
	}
	cmd := m.l.w.command(ctx, args...)
	cmd.Env = append(cmd.Env, "ARTIFACTFS_TOKEN="+m.repo.token, "ARTIFACTFS_SESSION_TOKEN="+m.repo.token)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil && into != nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		err = fmt.Errorf("artifactfs %s: %w: %.300s", args[0], err, stderr.String())
	}
	return err
}

// forker forks repositories, pushes to the forks, and deletes some of them.
type forker struct {
	l       *serverTrial
	rnd     *rand.Rand
	forks   []*trialFork
	deleted map[string]bool // names of deleted forks, and whether the deletion was acknowledged
}

// trialFork is a fork whose creation was acknowledged.
type trialFork struct {
	trialRepo
	has []string // commits that the fork must contain
}

func (f *forker) run(ctx context.Context) {
	api := f.l.c.api()
	dir := f.l.w.place("fork-work")
	if _, err := gittest.Git(ctx, "", "init", "-q", "-b", "main", dir); err != nil {
		return
	}
	for n := 0; ctx.Err() == nil; n++ {
		if err := f.fork(api, fmt.Sprint("fork", n)); err != nil {
			f.l.failed(err)
			pause(ctx, 50*time.Millisecond)
			continue
		}
		made := f.forks[len(f.forks)-1]
		if err := f.push(dir, made); err != nil {
			f.l.failed(err)
		}
		if n%3 == 2 { // the deleted fork may be the parent of other forks
			f.remove(api, f.rnd.IntN(len(f.forks)))
		}
		pause(ctx, time.Duration(f.rnd.IntN(200))*time.Millisecond)
	}
}

// fork forks a repository, or a fork.
func (f *forker) fork(api *client.Client, name string) error {
	from, has := *f.l.repos[f.rnd.IntN(len(f.l.repos))], []string(nil)
	if len(f.forks) > 0 && f.rnd.IntN(2) == 0 {
		parent := f.forks[f.rnd.IntN(len(f.forks))]
		from, has = parent.trialRepo, parent.has
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	made, err := api.Fork(ctx, trialSpace, from.name, client.Fork{Name: name})
	if err != nil {
		return err
	}
	f.forks = append(f.forks, &trialFork{trialRepo{made.Name, made.Remote, made.Token}, slices.Clone(has)})
	f.l.acked.Add(1)
	return nil
}

// push pushes a new commit to a branch of the fork.
func (f *forker) push(dir string, to *trialFork) error {
	if _, err := gittest.Git(context.Background(), dir, "commit", "-q", "--allow-empty", "-m", "In "+to.name); err != nil {
		return err
	}
	id, err := gittest.Git(context.Background(), dir, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	if _, err := gitAs(ctx, dir, to.token, "push", "-q", to.url, "HEAD:refs/heads/of-"+to.name); err != nil {
		return err
	}
	to.has = append(to.has, id)
	f.l.acked.Add(1)
	return nil
}

// remove deletes a fork.
func (f *forker) remove(api *client.Client, i int) {
	fork := f.forks[i]
	f.forks = slices.Delete(f.forks, i, i+1)
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	err := api.DeleteRepo(ctx, trialSpace, fork.name)
	f.deleted[fork.name] = err == nil
	if err != nil {
		f.l.failed(err)
		return
	}
	f.l.acked.Add(1)
}

// report logs what was done.
func (l *serverTrial) report() {
	l.w.Helper()
	var pushes, unacknowledged, checkpoints int
	for _, p := range l.pushers {
		pushes += len(p.sent)
		unacknowledged += len(p.sent) - 1 - p.last
	}
	for _, m := range l.mounts {
		checkpoints += len(m.saved)
	}
	l.w.Logf("%d acknowledged changes, %d commits were pushed (the last %d are not acknowledged), %d checkpoints of mounts", l.acked.Load(), pushes, unacknowledged, checkpoints)
	for _, text := range slices.Sorted(maps.Keys(l.failures)) {
		l.w.Logf("failed %d times: %s", l.failures[text], text)
	}
	// If the database or the object store is unavailable, a node must answer with status 503, so that clients repeat the
	// request.
	for _, n := range l.c.nodes {
		log, err := os.ReadFile(n.data + ".log")
		check2(l.w, err)
		found := 0
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, `"status": 500`) || strings.Contains(line, "panic") {
				if found++; found <= 5 {
					l.w.Errorf("log of %s: %s", n.data, line)
				}
			}
		}
	}
}

// judge checks that a clone of every repository through one of the nodes passes git fsck, and contains the acknowledged
// changes.
func (l *serverTrial) judge(f *forker) {
	l.w.Helper()
	for i, r := range l.repos {
		refs, dir := l.sound(*r, l.c.nodes[i%len(l.c.nodes)])
		for _, p := range l.pushers {
			if p.repo != r {
				continue
			}
			for _, err := range p.wrong(refs) {
				if p.last >= 0 || len(p.sent) == 0 { // without an acknowledged push, the refs may not exist
					l.w.Error(err)
				}
			}
		}
		for _, m := range l.mounts {
			for _, id := range m.saved {
				if m.repo == r && !l.has(dir, id) {
					l.w.Errorf("checkpoint %s of mount %s was acknowledged, but %s does not have it", id, m.name, r.name)
				}
			}
		}
	}
	api := l.c.api()
	for i, fork := range f.forks {
		_, dir := l.sound(fork.trialRepo, l.c.nodes[i%len(l.c.nodes)])
		for _, id := range fork.has {
			if !l.has(dir, id) {
				l.w.Errorf("commit %s was acknowledged, but %s does not have it", id, fork.name)
			}
		}
	}
	for name, acknowledged := range f.deleted {
		if _, err := api.Repo(l.w.context(), trialSpace, name); acknowledged && !errors.Is(err, client.ErrNotFound) {
			l.w.Errorf("%s after its deletion: got %v, want ErrNotFound", name, err)
		}
	}
	l.w.Logf("%d forks and %d deleted ones are as they must be", len(f.forks), len(f.deleted))
}

func (l *serverTrial) has(dir, id string) bool {
	_, err := gittest.Git(context.Background(), dir, "cat-file", "-e", id)
	return err == nil
}

// sound checks that all nodes have the same refs of a repository, and that a clone through one of them passes git fsck.
// It returns the refs and the directory of the clone.
func (l *serverTrial) sound(r trialRepo, through *clusterNode) (map[string]string, string) {
	l.w.Helper()
	var refs map[string]string
	for _, n := range l.c.nodes {
		out, err := gitAs(l.w.context(), l.w.root, r.token, "ls-remote", l.at(r, n))
		if err != nil {
			l.w.Errorf("%s at %s: %v", r.name, n.data, err)
			continue
		}
		if seen := refsIn(out); refs == nil {
			refs = seen
		} else if !maps.Equal(refs, seen) {
			l.w.Errorf("nodes do not agree on the refs of %s: %v and %v", r.name, refs, seen)
		}
	}
	dir := l.w.place("judge")
	if _, err := gitAs(l.w.context(), l.w.root, r.token, "clone", "-q", "--mirror", l.at(r, through), dir); err != nil {
		l.w.Errorf("clone %s: %v", r.name, err)
		return refs, dir
	}
	if out, err := gittest.Git(l.w.context(), dir, "fsck", "--full", "--strict", "--no-dangling",
		"--no-progress"); err != nil || out != "" {
		l.w.Errorf("fsck of %s: %v: %s", r.name, err, out)
	}
	return refs, dir
}

// at returns the URL of a repository on one node, without the proxy.
func (l *serverTrial) at(r trialRepo, n *clusterNode) string {
	return strings.Replace(r.url, l.c.proxy.url(), "http://"+n.addr, 1)
}

// swept checks that S3 contains all files of the packs of all repositories, and waits until it contains nothing else.
func (l *serverTrial) swept() {
	l.w.Helper()
	listed := func() map[string]bool {
		found := map[string]bool{}
		for _, row := range l.c.rows(l.w, "select distinct p.id, p.extensions from packs p join links l on l.pack = p.pack") {
			id, extensions, _ := strings.Cut(row, "|")
			for _, x := range strings.Fields(extensions) {
				found[id+x] = true
			}
		}
		return found
	}
	stored := func() map[string]bool {
		found := map[string]bool{}
		files, err := filepath.Glob(filepath.Join(l.c.s3.Dir, "*", "objects", "packs", "*", "*"))
		check2(l.w, err)
		for _, file := range files {
			found[filepath.Base(file)] = true
		}
		return found
	}
	wanted := listed()
	have := stored()
	for file := range wanted {
		if !have[file] && listed()[file] { // the file is still listed, so no collection has removed it in the meantime
			l.w.Errorf("%s belongs to a repository, but S3 does not have it", file)
		}
	}
	l.w.Logf("%d files of packs belong to repositories, %d are stored", len(wanted), len(have))
	l.until("S3 contains only packs of repositories", func() bool { return maps.Equal(listed(), stored()) })
}

// until waits until the function done returns true.
func (l *serverTrial) until(condition string, done func() bool) {
	l.w.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			l.w.Fatalf("condition does not hold after %v: %s", patience, condition)
		}
	}
}
