package contents

import (
	"context"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/filters"
	"github.com/artifactfs/artifactfs/git/filter"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/worktree"
)

// filterDeadline is the time after which a filter program without output is killed. It is long because git-lfs prints
// nothing while it downloads a file.
const filterDeadline = 15 * time.Minute

// Filtering has the parameters of a mount's filter programs, which convert contents.
type Filtering struct {
	Home      *home.Home
	Inside    bool                        // whether the git directory is in the root of the mount
	Ready     func(context.Context) error // waits until the git directory exists, which filter programs need
	TakenOver bool                        // whether the predecessor has begun the mount
}

// OpenView opens the view of the files of the mount, the filter programs that convert their contents (see
// gitattributes(5)), and the modes of the files. The environment of the programs is that of the mount request with
// GIT_DIR and GIT_WORK_TREE, which git sets, too. s has the git settings of the mount, which do not change while the
// mount exists.
func (c *Contents) OpenView(s gitdir.Checkout, f Filtering) (err error) {
	env := []string{"GIT_DIR=" + f.Home.GitDir(), "GIT_WORK_TREE=" + c.of.Dir}
	if f.Inside {
		env = append(env, gitcmd.Alternates(filepath.Join(c.Store.GitDir(), "objects")))
	}
	user, log := c.of.Request.Environment.ForPrograms(), c.of.Log.With(zap.String("mount", c.of.Dir))
	programs := filter.New(filter.Options{
		Dir: c.of.Dir, Base: user, Env: env, Deadline: filterDeadline, Ready: f.Ready, Log: log,
	})
	// A session that is deleted and started again at the same directory has the same name.
	session := c.of.ID + "\x00" + f.Home.Record.Began.UTC().Format(time.RFC3339Nano)
	record := filepath.Join(f.Home.Dir, "unfiltered")
	c.Filters, c.SameSizes, err = filters.Open(programs, session, s.Digest(user), record, f.TakenOver, log)
	c.Modes = worktree.Modes{
		Umask: c.of.Request.Umask, GroupWrite: c.of.Request.GroupWrite, LinksAsFiles: s.LinksAsFiles(),
	}
	c.Settings = s
	if err != nil {
		return err
	}
	c.View = c.Store.View(c.Snapshot(), s.Settings(user), c.Filters)
	c.Shown = newShown(c.View, f.Home.Dir, c.of.Log)
	c.Profiles = c.beginProfiles(f)
	return nil
}
