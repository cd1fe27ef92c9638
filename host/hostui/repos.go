package hostui

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/server/ui"
)

// Namespaces of the repositories on the page: one for the session repositories below the state directory, and one for
// session remotes that are directories of this host.
const (
	sessionsSpace = "sessions"
	remotesSpace  = "session-remotes"
)

// gitMemory is the memory limit of each git process in bytes.
const gitMemory = 2 << 30

// repositories lists the git directories of a host as repositories of package ui. It reads the state directory at every
// request.
type repositories struct{ state string }

// namespaces lists the namespaces of the repositories for package ui.
type namespaces struct{ repos *repositories }

var (
	_ ui.Repos      = (*repositories)(nil)
	_ ui.Replicas   = (*repositories)(nil)
	_ ui.Namespaces = namespaces{}
)

// directory is one git directory of the host. The field ID is its path.
type directory struct {
	records.Repo
	session string // name of the session, if this is a session repository
}

// list returns all git directories of the host, sorted by namespace and name.
func (rs *repositories) list() ([]directory, error) {
	homes := statedir.Homes{State: rs.state, Log: zap.NewNop()}
	ids, _, err := homes.IDs()
	if err != nil {
		return nil, err
	}
	var list []directory
	add := func(dir, space, name, session string, r statedir.Record) {
		info, err := os.Stat(filepath.Join(dir, "HEAD"))
		if err != nil {
			return // no git directory, or not one that the user may read
		}
		repo := records.Repo{ID: dir, Namespace: space, Name: name, DefaultBranch: cmp.Or(statedir.ShortRef(r.Ref), "main"),
			ObjectFormat: r.Format, ReadOnly: true, Status: records.Ready, Created: r.Began, Updated: info.ModTime(),
			Description: r.Remote}
		list = append(list, directory{repo, session})
	}
	remotes := map[string]statedir.Record{}
	for _, id := range ids {
		home := filepath.Join(homes.Dir(), id)
		r, err := statedir.ReadRecord(home)
		if err != nil {
			continue // doctor reports damaged sessions
		}
		if statedir.HasSessionRepo(home) {
			add(filepath.Join(home, statedir.SessionRepoName), sessionsSpace, id, r.Session, r)
		}
		if dir, ok := gitDir(r.SessionRemoteURL()); ok {
			remotes[dir] = r
		}
	}
	names := map[string]int{}
	for _, dir := range slices.Sorted(maps.Keys(remotes)) {
		name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(strings.TrimSuffix(dir, "/.git")), ".git"), ".")
		if names[name]++; names[name] > 1 {
			name += "-" + strconv.Itoa(names[name])
		}
		add(dir, remotesSpace, cmp.Or(name, "remote"), "", remotes[dir])
	}
	slices.SortStableFunc(list, func(a, b directory) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

// gitDir returns the git directory of a session remote that is a path or a file URL, or false for other session
// remotes.
func gitDir(remote string) (string, bool) {
	if rest, ok := strings.CutPrefix(remote, "file://"); ok {
		path, err := url.PathUnescape(rest)
		if err != nil {
			return "", false
		}
		remote = path
	}
	if !filepath.IsAbs(remote) {
		return "", false
	}
	for _, dir := range []string{remote, filepath.Join(remote, ".git"), remote + ".git"} {
		if _, err := os.Stat(filepath.Join(dir, "objects")); err == nil {
			return filepath.Clean(dir), true
		}
	}
	return "", false
}

// find returns the first git directory for which the function is returns true, or records.ErrNotFound.
func (rs *repositories) find(is func(directory) bool) (directory, error) {
	list, err := rs.list()
	if err != nil {
		return directory{}, err
	}
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i], nil
	}
	return directory{}, records.ErrNotFound
}

// ByID returns the repository whose git directory is at the path id.
func (rs *repositories) ByID(_ context.Context, id string) (records.Repo, error) {
	d, err := rs.find(func(d directory) bool { return d.ID == id })
	return d.Repo, err
}

// Get returns a repository by its namespace and name.
func (rs *repositories) Get(_ context.Context, namespace, name string) (records.Repo, error) {
	d, err := rs.find(func(d directory) bool { return d.Namespace == namespace && d.Name == name })
	return d.Repo, err
}

// List returns at most q.Limit repositories of a namespace whose names follow q.After, and the number of all
// repositories of the namespace. next is the name to continue after; "" at the end.
func (rs *repositories) List(_ context.Context,
	q records.RepoQuery) (page []records.Repo, total int, next string, err error) {
	list, err := rs.list()
	for _, d := range list {
		if d.Namespace != q.Namespace {
			continue
		}
		if total++; d.Name > q.After && len(page) < q.Limit {
			page = append(page, d.Repo)
		}
	}
	if len(page) > 0 && len(page) == q.Limit {
		next = page[len(page)-1].Name
	}
	return page, total, next, err
}

// Refs returns the refs of the git directory at the path id.
func (rs *repositories) Refs(ctx context.Context, id string) ([]records.Ref, error) {
	out, err := rs.Git().In(id).Output(ctx, "", "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return nil, err
	}
	var refs []records.Ref
	for line := range strings.Lines(string(out)) {
		if id, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			refs = append(refs, records.Ref{Name: name, ID: id})
		}
	}
	return refs, nil
}

// Acquire returns the git directory at the path id in the form of a replica.
func (rs *repositories) Acquire(ctx context.Context, id string) (*replica.Replica, error) {
	r, err := rs.ByID(ctx, id)
	if err != nil {
		return nil, err
	}
	return replica.Foreign(r.ID, r), nil
}

// Git returns the settings for running git: without the configuration of the user, and without requests to remotes.
func (rs *repositories) Git() gitcmd.Confined {
	return gitcmd.Confined{Env: gitcmd.IsolatedEnviron(), Memory: gitMemory}
}

// remote returns the path of a session remote, for commands on the page, or "" for a session repository, because
// commands find a session by its name.
func (rs *repositories) remote(r records.Repo) string {
	if r.Namespace == sessionsSpace {
		return ""
	}
	return r.ID
}

// Get returns the namespace with this name.
func (n namespaces) Get(ctx context.Context, name string) (records.Namespace, error) {
	list, _, err := n.List(ctx, "", 0, 0)
	if err != nil {
		return records.Namespace{}, err
	}
	if i := slices.IndexFunc(list, func(ns records.Namespace) bool { return ns.Name == name }); i >= 0 {
		return list[i], nil
	}
	return records.Namespace{}, records.ErrNotFound
}

// List returns all namespaces in one page.
func (n namespaces) List(context.Context, string, int, int) (page []records.Namespace, total int, err error) {
	list, err := n.repos.list()
	counts := map[string]int{}
	for _, d := range list {
		counts[d.Namespace]++
	}
	for _, name := range []string{remotesSpace, sessionsSpace} {
		page = append(page, records.Namespace{Name: name, Repos: counts[name]})
	}
	return page, len(page), err
}
