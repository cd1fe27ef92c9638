package gitdir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object/loose"
	"github.com/artifactfs/artifactfs/promisor"
)

// A git directory that is visible inside the mount (Options.Inside) contains no absolute paths, because the mount may be visible
// at several paths, for example in containers. Files and directories from outside are made visible by bind mounts on the paths
// below. The code that mounts the git directory creates them.
const (
	insideDir     = "artifactfs"           // directory in the git directory
	InsideObjects = insideDir + "/objects" // mount point for the store's objects directory
	InsideSession = insideDir + "/session" // mount point for the session's objects directory
	InsideHelper  = insideDir + "/helper"  // mount point (a file) for the artifactfs command
	InsideMonitor = insideDir + "/monitor" // mount point (a file) for Options.Monitor
)

// insideURL is the URL of the promisor remote that earlier versions of artifactfs have configured.
const insideURL = "file:///artifactfs"

// setPlaces sets the settings that depend on the paths of the git directory and of programs. It returns true if this has changed
// a setting.
func (o Options) setPlaces(c *config.Config, path string) (changed bool) {
	core := c.Section("core")
	switch {
	case !o.Inside && core.Option("worktree") != o.WorkTree:
		core.SetOption("worktree", o.WorkTree)
		changed = true
	case o.Inside && core.HasOption("worktree"):
		core.RemoveOption("worktree") // without this setting git uses the directory that contains .git
		changed = true
	}
	// A configuration that an earlier version of artifactfs has written lacks this include.
	if !slices.Contains(c.Section("include").OptionAll("path"), loginsConfig) {
		first := config.New().Section("include")
		c.Sections = append(config.Sections{first.AddOption("path", loginsConfig)}, c.Sections...)
		changed = true
	}
	condition := "gitdir:" + quoteGlob.Replace(realPath(path))
	if o.Inside {
		condition = "gitdir:.git" // git extends this pattern to **/.git, which does not match .git/worktrees/x
	}
	for _, s := range c.Section("includeIf").Subsections {
		if s.Option("path") == monitorConfig && s.Name != condition {
			s.Name, changed = condition, true
		}
	}
	return dropPromisor(c) || changed
}

// dropPromisor removes the settings with which earlier versions of artifactfs made the git directory a partial clone. With these settings
// git would fetch the contents of a whole tree before it writes a tree. It returns true if this has changed a setting.
func dropPromisor(c *config.Config) (changed bool) {
	remote := c.Section("remote")
	if remote.HasSubsection(helperRemote) {
		remote.RemoveSubsection(helperRemote)
		changed = true
	}
	if !remote.HasSubsection("origin") {
		return changed
	}
	origin := remote.Subsection("origin")
	before := len(origin.Options)
	origin.Options = slices.DeleteFunc(origin.Options, func(o *config.Option) bool {
		return o.IsKey("promisor") || o.IsKey("partialclonefilter")
	})
	return changed || len(origin.Options) < before
}

// borrow writes objects/info/alternates, through which git finds the objects of the store and of the session, and the objects that the
// mount shows. It also creates the object directory for commands that must not use the mount (Outside).
func (o Options) borrow(path string) error {
	dirs := o.borrowed()
	err := promisor.LinkObjects(filepath.Join(path, promisor.LinkedObjects), filepath.Join(path, "objects"), dirs)
	dirs = append(dirs, filepath.Join(realPath(o.WorkTree), loose.DirName))
	if o.Inside {
		dirs = []string{"../" + InsideObjects} // relative to the objects directory, see gitrepository-layout(5)
		if o.Session != "" {
			dirs = append(dirs, "../"+InsideSession)
		}
		dirs = append(dirs, "../../"+loose.DirName)
		err = errors.Join(err, PrepareInside(path))
	}
	return errors.Join(err, disk.WriteFile(alternatesOf(path), []byte(strings.Join(dirs, "\n")+"\n"), 0o644))
}

// alternatesOf returns the path of the file with the alternates of a git directory.
func alternatesOf(path string) string { return filepath.Join(path, "objects", "info", "alternates") }

// borrowed returns the objects directories on disk that git uses through alternates.
func (o Options) borrowed() []string {
	if o.Session == "" {
		return []string{o.Objects}
	}
	return []string{o.Objects, o.Session}
}

// PrepareInside creates the mount points in a git directory that is visible inside the mount. It creates the git directory if
// that does not exist.
func PrepareInside(path string) error {
	err := errors.Join(os.MkdirAll(filepath.Join(path, InsideObjects), 0o755), os.MkdirAll(filepath.Join(path, InsideSession), 0o755))
	for _, name := range []string{InsideHelper, InsideMonitor} {
		f, openErr := os.OpenFile(filepath.Join(path, name), os.O_CREATE|os.O_WRONLY, 0o755)
		if openErr == nil {
			openErr = f.Close()
		}
		err = errors.Join(err, openErr)
	}
	return err
}

// Outside returns the environment variables for a git command of this process on the git directory at path. The command reads the objects
// on disk and not those that the mount shows, for which this process would have to answer requests. The command must not write objects.
func Outside(path string) []string {
	return []string{"GIT_OBJECT_DIRECTORY=" + promisor.OwnObjects(path)}
}

// hook returns the path of the symbolic link that is the monitor's hook, the target of this link, and the command for
// core.fsmonitor. git runs the command in the root of the working tree.
func (o Options) hook(path, name string) (at, target, command string) {
	at = filepath.Join(path, name)
	if o.Inside {
		return at, InsideMonitor, ".git/" + name
	}
	command = at
	if strings.ContainsAny(at, "|&;<>()$`\\\"' \t\n*?[#~=%") {
		command = shellQuote(at)
	}
	return at, o.Monitor, command
}

// isPlace reports whether setPlaces writes this line of the configuration file.
func isPlace(line string) bool {
	line = strings.TrimSpace(line)
	for _, prefix := range []string{"worktree =", "[include]", "path = " + loginsConfig, "[includeIf ", "uploadpack ="} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return line == "url = "+insideURL || strings.HasPrefix(line, "url = file://") && strings.HasSuffix(line, "/git")
}

// hookName returns the name under which the installed git has to start the hook.
func (o Options) hookName() string {
	if o.Git.AtLeast(rightDiff) {
		return query.HookName
	}
	return query.CarefulName
}
