package imports

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/egress"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

var (
	errGit    = errors.New("git failed")
	errFormat = errors.New("object format of the other repository has changed")
	errTime   = errors.New("import has taken too long")
	errSlow   = errors.New("other server sends too slowly")
)

// run makes one attempt of an import and records its result. The caller holds the lease of the import.
func (i *Importer) run(ctx context.Context, repoID string) {
	log := i.o.Log.With(zap.String("repo", repoID))
	m, err := i.o.Records.Imports.Take(ctx, repoID)
	if err != nil {
		return // in the meantime, the import was finished or its repository was deleted
	}
	if m.Attempts++; m.Attempts > maxAttempts {
		m.Attempts = maxAttempts
		i.end(ctx, log, &m, fmt.Errorf("import failed in all of %d attempts: %s", maxAttempts, m.Error), true)
		return
	}
	m.State, m.Phase, m.Done, m.Total, m.Bytes = string(Running), "", 0, 0, 0
	if err := i.o.Records.Imports.Save(ctx, m); err != nil {
		return
	}
	a := &attempt{Importer: i, m: &m}
	limited, cancel := context.WithTimeoutCause(ctx, i.o.MaxTime, errTime)
	defer cancel()
	err = a.run(limited)
	if err == nil {
		log.Info("imported", zap.String("url", m.URL), zap.Int64("bytes", m.Bytes))
		return
	}
	if ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), errLease) {
			return // another node runs the import
		}
		m.Attempts-- // the end of this process does not count as a failed attempt
	}
	if limited.Err() != nil && ctx.Err() == nil {
		err = errTime
	}
	i.end(ctx, log, &m, err, ctx.Err() == nil && (!a.temporary(err) || m.Attempts >= maxAttempts))
}

// end records an attempt that has failed. It ends the import if final is true.
func (i *Importer) end(ctx context.Context, log *zap.Logger, m *records.Import, err error, final bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	m.Phase, m.Done, m.Total, m.Error = "", 0, 0, printable(err.Error())
	m.State = string(Queued)
	save := i.o.Records.Imports.Save
	if final {
		m.State, m.Finished = string(Failed), time.Now()
		save = i.o.Records.Imports.Fail
	}
	switch err := save(ctx, *m); {
	case errors.Is(err, records.ErrNotFound):
		log.Info("left an import that was taken over, or whose repository was deleted", zap.String("url", m.URL))
		return
	case err != nil:
		log.Warn("could not record the failure of an import", zap.Error(err))
	}
	log.Info("import failed", zap.String("url", m.URL), zap.Bool("final", final), zap.String("error", m.Error))
}

// attempt is one attempt of an import.
type attempt struct {
	*Importer
	m        *records.Import
	repo     records.Repo
	dir      string // git directory of the fetch
	first    bool   // whether the repository had no objects before
	received bool   // whether git has received all objects, so that only the contents can cause a failure
}

// temporary reports whether another attempt may succeed after err.
func (a *attempt) temporary(err error) bool {
	switch {
	case errors.Is(err, ErrUnavailable), errors.Is(err, records.ErrUnavailable), errors.Is(err, objects.ErrUnavailable),
		errors.Is(err, records.ErrCollected), errors.Is(err, records.ErrFull), errors.Is(err, objects.ErrFull):
		return true
	case errors.Is(err, egress.ErrTooMuch), errors.Is(err, errSlow):
		return false
	}
	// Git does not report whether the connection or the contents caused the failure.
	return errors.Is(err, errGit) && !a.received && a.m.Attempts < maxGit
}

func (a *attempt) run(ctx context.Context) (err error) {
	request := Request{URL: a.m.URL, Branch: a.m.Branch, Depth: a.m.Depth, Secret: a.m.Secret}
	if a.repo, err = a.o.Records.Repos.ByID(ctx, a.m.RepoID); err != nil {
		return err
	}
	request.Namespace = a.repo.Namespace
	remote, c, err := a.find(ctx, request)
	if err != nil {
		return err
	}
	have, err := a.o.Replicas.Acquire(ctx, a.repo.ID)
	if err != nil {
		return err
	}
	defer have.Release()
	// git uses a copy of the replica, which has only objects of the repository: a pack in the replica that the
	// repository does not list may be removed.
	base, err := have.Copy(ctx)
	if err != nil {
		return err
	}
	defer base.Remove()
	a.repo = base.Repo
	if remote.ObjectFormat != a.repo.ObjectFormat {
		return fmt.Errorf("%w from %s to %s", errFormat, a.repo.ObjectFormat, remote.ObjectFormat)
	}
	if a.dir, err = os.MkdirTemp(a.o.Scratch, "import-*"); err != nil {
		return objects.Classify(err)
	}
	defer os.RemoveAll(a.dir)
	if err := a.prepare(ctx, base.Dir); err != nil {
		return err
	}
	if err := a.fetch(ctx, remote, c); err != nil {
		return err
	}
	return a.publish(ctx, remote)
}

// prepare creates a git directory that has the objects of the git directory base as alternates. It has the refs of base
// below the prefix haves, so that git fetches only new objects.
func (a *attempt) prepare(ctx context.Context, base string) error {
	if err := a.git(ctx, "init", "--quiet", "--bare", "--template=", "--object-format="+a.repo.ObjectFormat,
		a.dir); err != nil {
		return err
	}
	have, err := disk.Glob(filepath.Join(base, "objects", "pack"), "*.idx")
	if err != nil {
		return err
	}
	a.first = len(have) == 0
	info := filepath.Join(a.dir, "objects", "info")
	if err := os.MkdirAll(info, 0o700); err != nil {
		return objects.Classify(err)
	}
	if err := os.WriteFile(filepath.Join(info, "alternates"), []byte(filepath.Join(base, "objects")+"\n"),
		0o600); err != nil {
		return objects.Classify(err)
	}
	refs, err := os.ReadFile(filepath.Join(base, "packed-refs"))
	if err == nil {
		// The names stay sorted, because all get the same prefix.
		refs = bytes.ReplaceAll(refs, []byte(" refs/"), []byte(" "+haves+"refs/"))
		err = os.WriteFile(filepath.Join(a.dir, "packed-refs"), refs, 0o600)
	}
	if err != nil {
		return objects.Classify(err)
	}
	if a.repo.Shallow != "" {
		return objects.Classify(os.WriteFile(filepath.Join(a.dir, "shallow"), []byte(a.repo.Shallow), 0o600))
	}
	return nil
}

// haves is the prefix of the refs of the repository in the git directory of an attempt.
const haves = "refs/haves/"

// settings are the settings of git for imports. As for pushes, fsck accepts some invalid objects that old versions of
// git have written into many repositories.
var settings = [][2]string{
	{"protocol.version", "2"}, {"http.followRedirects", "false"}, {"http.proxyAuthMethod", "basic"},
	{"http.lowSpeedLimit", "100"},
	{"http.lowSpeedTime", "60"}, {"credential.helper", ""}, {"transfer.bundleURI", "false"},
	{"transfer.credentialsInUrl", "die"},
	{"fetch.unpackLimit", "1"}, {"fetch.fsckObjects", "true"}, {"fetch.fsck.badTimezone", "ignore"},
	{"fetch.fsck.missingSpaceBeforeDate", "ignore"}, {"fetch.fsck.zeroPaddedFilemode", "ignore"},
	{"fetch.writeCommitGraph", "false"},
	{"fetch.showForcedUpdates", "false"}, {"gc.auto", "0"}, {"maintenance.auto", "false"}, {"core.fsync", "none"},
	{"core.bigFileThreshold", "64m"}, {"core.packedGitLimit", "256m"}, {"core.deltaBaseCacheLimit", "32m"},
	{"pack.threads", "2"},
	{"pack.windowMemory", "64m"}, {"pack.writeReverseIndex", "true"},
}

// confined returns the limits for git commands of the attempt. Settings are passed in the environment, because other
// users of the host can read arguments.
func (a *attempt) confined(more ...[2]string) gitcmd.Confined {
	git := a.o.Replicas.Git()
	env := append(git.Env, "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_ALLOW_PROTOCOL="+a.protocols(), "HOME="+a.dir)
	all := append(settings[:len(settings):len(settings)], more...)
	for n, s := range all {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", n, s[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, s[1]))
	}
	git.Env = append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(len(all)))
	return git
}

func (a *attempt) protocols() string {
	if a.o.AllowHTTP {
		return "https:http"
	}
	return "https"
}

// git runs a git command in the directory of the attempt.
func (a *attempt) git(ctx context.Context, args ...string) error {
	cmd := a.confined().In(a.dir).Command(ctx, args...)
	ended := a.o.Meter.Git(args[0])
	err := gitcmd.Run(cmd)
	ended(err)
	if err != nil {
		return fmt.Errorf("%w: %w", errGit, err)
	}
	return nil
}

// fetch fetches the objects and refs of the other server.
func (a *attempt) fetch(ctx context.Context, remote found, c credentials) error {
	proxy, err := egress.StartProxy(a.dialer(), a.o.MaxBytes)
	if err != nil {
		return err
	}
	defer proxy.Close()
	more := [][2]string{{"http.proxy", proxy.URL}}
	if a.o.CAFile != "" {
		more = append(more, [2]string{"http.sslCAInfo", a.o.CAFile})
	}
	if c != (credentials{}) {
		basic := base64.StdEncoding.EncodeToString([]byte(c.user + ":" + c.password))
		more = append(more, [2]string{"http.extraHeader", "Authorization: Basic " + basic})
	}
	args := []string{"fetch", "--progress", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
		"--update-shallow"}
	if a.m.Depth > 0 {
		args = append(args, "--depth="+strconv.Itoa(a.m.Depth))
	}
	args = append(append(args, "--", remote.url.String()), refspecs(a.m.Branch)...)
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := a.confined(more...).In(a.dir).Command(running, args...)
	// Kill the whole process group, so that helpers of git do not write into a directory that is being removed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	p := &progress{}
	cmd.Stderr = p
	ended := a.o.Meter.Git("fetch")
	if err := cmd.Start(); err != nil {
		ended(err)
		return gitcmd.Failed(cmd, err, nil)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	begin := time.Now()
	slow := slowness{pace: a.pace, seen: begin}
	tick := time.NewTicker(a.pace.save)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			ended(err)
			a.take(p, proxy)
			switch {
			case err == nil:
				return nil
			case running.Err() != nil:
				return context.Cause(running)
			case proxy.Err() != nil:
				return proxy.Err()
			}
			text := strings.ReplaceAll(c.redact(p.message()), proxy.URL, "")
			return fmt.Errorf("%w: git fetch printed: %s", errGit, text)
		case <-tick.C:
			a.take(p, proxy)
			if !a.received && slow.check(*a.m, time.Now()) {
				cancel(fmt.Errorf("%w: received %d bytes in %s", errSlow, a.m.Bytes, time.Since(begin).Round(time.Second)))
			}
			if err := a.o.Records.Imports.Save(ctx, *a.m); errors.Is(err, records.ErrNotFound) {
				cancel(err) // end the attempt, because another node runs the import or the repository was deleted
			}
		}
	}
}

// take copies the progress of git and of the proxy to the record of the import.
func (a *attempt) take(p *progress, proxy *egress.Proxy) {
	a.m.Phase, a.m.Done, a.m.Total = p.state()
	a.m.Bytes = proxy.Received()
	a.received = a.received || a.m.Phase == resolving || a.m.Phase == receiving && a.m.Done == a.m.Total && a.m.Total > 0
}

// publish stores the pack and makes the refs visible.
func (a *attempt) publish(ctx context.Context, remote found) error {
	there, err := a.fetched(ctx)
	if err != nil {
		return err
	}
	last, err := decodeRefs(a.m.Refs)
	if err != nil {
		return fmt.Errorf("read refs of the last import: %w", err)
	}
	hash, err := a.pack(ctx)
	if err != nil {
		return err
	}
	shallow, err := a.shallow()
	if err != nil {
		return err
	}
	refs, err := a.o.Records.Repos.Refs(ctx, a.repo.ID)
	if err != nil {
		return err
	}
	here := map[string]string{}
	for _, r := range refs {
		here[r.Name] = r.ID
	}
	zero := strings.Repeat("0", 40)
	if a.repo.ObjectFormat == "sha256" {
		zero = strings.Repeat("0", 64)
	}
	changes, kept := updates(here, there, last, a.m.Branch, zero)
	pack, err := a.store(ctx, hash, changes)
	if err != nil {
		return err
	}
	again := len(last) > 0
	var commits map[string]events.Commits
	if again { // new commits have the same events as those of a push
		if commits, err = events.Walk(ctx, a.confined(), a.dir, changes); err != nil {
			a.o.Log.Warn("could not list the commits of an import", zap.Error(err))
		}
	}
	for name, id := range last {
		if !covers(a.m.Branch, name) {
			there[name] = id
		}
	}
	done := *a.m
	done.State, done.Phase, done.Error, done.Finished, done.Refs = string(Succeeded), "", "", time.Now(), encodeRefs(there)
	if kept > 0 {
		done.Phase = fmt.Sprintf("left %d refs alone that were changed here", kept)
	}
	repo := a.repo
	repo.Status, repo.Updated = records.Ready, done.Finished
	branch := a.defaultBranch(remote, again)
	if branch != "" {
		repo.DefaultBranch = branch
	}
	stamp := events.Stamp{Account: a.o.Account, Time: done.Finished}
	push := records.Push{
		RepoID: a.repo.ID, Version: a.repo.Version, Updates: changes, Pack: pack,
		Cause: records.Cause{Actor: "import", Method: "import", Target: repo.Namespace + "/" + repo.Name},
	}
	if again {
		push.Events = func(made []records.RefUpdate) []records.Event { return events.Pushed(stamp, repo, made, commits) }
	}
	results, err := a.o.Records.Imports.Finish(ctx, records.Imported{
		Import: done, Push: push, DefaultBranch: branch, Shallow: shallow,
		Events: []records.Event{events.Imported(stamp, repo, a.m.URL, a.branchOf(repo))},
	})
	if err != nil {
		return err
	}
	for n, err := range results {
		if err != nil {
			a.o.Log.Info("a ref was changed during an import and stays as it is", zap.String("ref", changes[n].Name),
				zap.Error(err))
		}
	}
	*a.m = done
	return nil
}

// branchOf returns the name of the branch in the event of an import.
func (a *attempt) branchOf(repo records.Repo) string {
	if a.m.Branch != "" {
		return a.m.Branch
	}
	return repo.DefaultBranch
}

// defaultBranch returns the new default branch of the repository, or "" if it does not change. It is that of the other
// server only at the first import, because users can change it on this server later.
func (a *attempt) defaultBranch(remote found, again bool) string {
	switch {
	case a.o.Compat:
		return "main"
	case again:
		return ""
	case a.m.Branch != "":
		return a.m.Branch
	}
	return remote.DefaultBranch
}

// fetched returns the refs that git has fetched.
func (a *attempt) fetched(ctx context.Context) (map[string]string, error) {
	out, err := a.confined().In(a.dir).Output(ctx, "", "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errGit, err)
	}
	refs := parseRefs(string(out))
	maps.DeleteFunc(refs, func(name, _ string) bool { return strings.HasPrefix(name, haves) })
	return refs, nil
}

// bitmapBytes is the size, in bytes, from which on the pack of a first import gets a bitmap, which makes clones faster.
// The bitmap is created before the pack is stored, because forks may share the pack afterwards.
const bitmapBytes = 16 << 20

// pack returns the hash of the pack that git has fetched, or "" if there were no new objects. If git has fetched
// several packs, pack joins them.
func (a *attempt) pack(ctx context.Context) (string, error) {
	list := func() ([]string, error) { return disk.Glob(filepath.Join(a.dir, "objects", "pack"), "pack-*.pack") }
	packs, err := list()
	if err != nil {
		return "", err
	}
	repack := []string{"repack", "-a", "-d", "-l", "--quiet"}
	large := false
	if a.first && len(packs) == 1 {
		info, err := os.Stat(packs[0])
		if err != nil {
			return "", err
		}
		if large = info.Size() >= bitmapBytes; large {
			// not for a shallow history, for which git creates no bitmap
			repack = []string{"repack", "-a", "-d", "--write-bitmap-index", "--quiet"}
		}
	}
	if large || len(packs) > 1 {
		if err = a.git(ctx, repack...); err == nil {
			packs, err = list()
		}
	}
	switch {
	case err != nil:
		return "", err
	case len(packs) == 0:
		return "", nil
	case len(packs) > 1:
		return "", fmt.Errorf("%w: repack has left %d packs instead of one", errGit, len(packs))
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(packs[0]), "pack-"), ".pack"), nil
}

// maxShallow is the maximum size, in bytes, of the list of commits at which a history ends. The list is part of the
// repository's row in the database.
const maxShallow = 64 << 10

// shallow returns the commits at which the history ends.
func (a *attempt) shallow() (string, error) {
	text, err := os.ReadFile(filepath.Join(a.dir, "shallow"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err == nil && len(text) > maxShallow {
		return "", fmt.Errorf("shallow history begins at more than %d commits: import it without a depth", maxShallow/41)
	}
	return string(text), err
}
