package mount

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/filter"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// filterDeadline is how long a filter program may run without output. It is long because git-lfs prints nothing while it
// downloads a file.
const filterDeadline = 15 * time.Minute

// newFilters returns the filter programs that convert the contents of files in the mount (see gitattributes(5)). As when git
// starts them, GIT_DIR and GIT_WORK_TREE are set in their environment. The other environment variables are taken from the mount
// request.
func (m *Mount) newFilters() *filter.Programs {
	env := []string{"GIT_DIR=" + gitPath(m.home), "GIT_WORK_TREE=" + m.Dir}
	if m.inside.Wanted() {
		env = append(env, gitcmd.Alternates(filepath.Join(m.store.GitDir(), "objects")))
	}
	return filter.New(filter.Options{
		Dir: m.Dir, Base: m.Request.Environment, Env: env, Deadline: filterDeadline,
		Ready: m.awaitGitDir, Log: m.host.Log.With(zap.String("mount", m.Dir)),
	})
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
