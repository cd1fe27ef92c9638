package mount

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/filter"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/worktree"
)

// filterDeadline is how long a filter program may run without output. It is long because git-lfs prints nothing while it
// downloads a file.
const filterDeadline = 15 * time.Minute

// openFilters sets the filter programs that convert the contents of files in the mount (see gitattributes(5)), its view of the
// contents, and the modes of its files. As when git starts the programs, GIT_DIR and GIT_WORK_TREE are set in their environment. The
// other environment variables are taken from the mount request. c has the settings of the mount, which do not change while the mount
// exists.
func (m *Mount) openFilters(c gitdir.Checkout) (err error) {
	env := []string{"GIT_DIR=" + m.home.GitDir(), "GIT_WORK_TREE=" + m.Dir}
	if m.inside.Wanted() {
		env = append(env, gitcmd.Alternates(filepath.Join(m.store.GitDir(), "objects")))
	}
	user, log := m.Request.Environment, m.host.Log.With(zap.String("mount", m.Dir))
	programs := filter.New(filter.Options{
		Dir: m.Dir, Base: user, Env: env, Deadline: filterDeadline, Ready: m.awaitGitDir, Log: log,
	})
	// A session that is deleted and started again at the same directory has the same name.
	session := m.ID + "\x00" + m.home.Record.Began.UTC().Format(time.RFC3339Nano)
	record := filepath.Join(m.home.Dir, "unfiltered")
	m.filters, m.sameSizes, err = fetch.OpenFilters(programs, session, c.Digest(user), record, m.takeoverDone != nil, log)
	m.modes = worktree.Modes{Umask: m.Request.Umask, GroupWrite: m.Request.GroupWrite, LinksAsFiles: c.LinksAsFiles()}
	m.settings = c
	if err == nil {
		m.view = m.store.View(m.snap, c.Settings(user), m.filters)
	}
	return err
}

// awaitGitDir waits until the mount's git directory exists, which filter programs need. It returns an error if the git directory
// could not be created, or if ctx or the mount ends.
func (m *Mount) awaitGitDir(ctx context.Context) error {
	if !m.Events.AwaitGit(ctx) {
		return cmp.Or(ctx.Err(), context.Canceled)
	}
	if m.Git().Dir() == nil {
		return errors.New("the mount has no git directory yet")
	}
	return nil
}
