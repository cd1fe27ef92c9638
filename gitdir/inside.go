package gitdir

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// A git directory that is seen inside the mount (Options.Inside) names nothing by an absolute path, since nobody knows where
// the mount will be seen, and by whom. What lies elsewhere is mounted over these places in it, by who mounts.
const (
	insideDir     = "artifactfs"
	InsideObjects = insideDir + "/objects" // directory: the store's objects
	InsideSession = insideDir + "/session" // directory: the session's objects
	InsideHelper  = insideDir + "/helper"  // file: the artifactfs command
	InsideMonitor = insideDir + "/monitor" // file: Options.Monitor
	borrowedName  = insideDir + "/borrowed"
)

// insideHelper is the promisor remote's upload-pack, a command for sh to which git appends the remote's path, here left
// out. git runs it where it works, which may be a linked worktree, with GIT_DIR taken away, so its own is looked at first.
const insideHelper = `g=$(tr '\0' '\n' </proc/$PPID/environ | sed -n 's/^GIT_DIR=//p'); d=$(git ${g:+--git-dir="$g"} rev-parse --git-common-dir) && ` +
	`exec "$d/` + InsideHelper + `" upload-pack-helper "$d" #`

// insideURL stands where git wants a URL. Nobody opens it.
const insideURL = "file:///artifactfs"

// setPlaces sets what follows from where the git directory and our programs are, and says whether that is new.
func (o Options) setPlaces(c *config.Config, path string) (changed bool) {
	core := c.Section("core")
	switch {
	case !o.Inside && core.Option("worktree") != o.WorkTree:
		core.SetOption("worktree", o.WorkTree)
		changed = true
	case o.Inside && core.HasOption("worktree"):
		core.RemoveOption("worktree") // it is what is around it
		changed = true
	}
	if !slices.Contains(c.Section("include").OptionAll("path"), loginsConfig) { // it was made by an earlier version
		first := config.New().Section("include")
		c.Sections = append(config.Sections{first.AddOption("path", loginsConfig)}, c.Sections...)
		changed = true
	}
	condition := "gitdir:" + quoteGlob.Replace(realPath(path))
	if o.Inside {
		condition = "gitdir:.git" // and not .git/worktrees/x: git puts **/ in front and nothing behind
	}
	for _, s := range c.Section("includeIf").Subsections {
		if s.Option("path") == monitorConfig && s.Name != condition {
			s.Name, changed = condition, true
		}
	}
	if !c.Section("remote").HasSubsection(helperRemote) || o.Helper == "" {
		return changed
	}
	at := url.URL{Scheme: "file", Path: realPath(path)}
	uploadPack, from := shellQuote(o.Helper)+" upload-pack-helper", at.String()
	if o.Inside {
		uploadPack, from = insideHelper, insideURL
	}
	remote := c.Section("remote").Subsection(helperRemote)
	for key, value := range map[string]string{"url": from, "uploadpack": uploadPack} {
		if remote.Option(key) != value {
			remote.SetOption(key, value)
			changed = true
		}
	}
	return changed
}

// borrow names the store's objects to git.
func (o Options) borrow(path string) error {
	alternates := filepath.Join(path, "objects", "info", "alternates")
	if !o.Inside {
		err := os.Remove(filepath.Join(path, borrowedName))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return errors.Join(err, os.WriteFile(alternates, []byte(o.borrowed()), 0o644))
	}
	inside := "../" + InsideObjects + "\n" // relative to objects (gitrepository-layout)
	if o.Session != "" {
		inside += "../" + InsideSession + "\n"
	}
	return errors.Join(PrepareInside(path), os.WriteFile(filepath.Join(path, borrowedName), []byte(o.borrowed()), 0o644),
		os.WriteFile(alternates, []byte(inside), 0o644))
}

// borrowed lists the directories of objects, a line each.
func (o Options) borrowed() string {
	if o.Session == "" {
		return o.Objects + "\n"
	}
	return o.Objects + "\n" + o.Session + "\n"
}

// PrepareInside makes the places that are to be mounted over, in a git directory that may not be made yet.
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

// Borrowing is what the environment of a git command needs that uses a git directory from outside of the mount.
func Borrowing(path string) []string {
	objects, err := os.ReadFile(filepath.Join(path, borrowedName))
	if err != nil {
		return nil
	}
	return []string{gitcmd.Alternates(strings.Split(strings.TrimSuffix(string(objects), "\n"), "\n")...)}
}

// hook gives the place of the monitor's hook program, what it links to, and how git is told of it. git starts it in the top
// of the working tree.
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

// isPlace says whether a line of the configuration is one that setPlaces sets.
func isPlace(line string) bool {
	line = strings.TrimSpace(line)
	for _, prefix := range []string{"worktree =", "[include]", "path = " + loginsConfig, "[includeIf ", "uploadpack ="} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return line == "url = "+insideURL || strings.HasPrefix(line, "url = file://") && strings.HasSuffix(line, "/git")
}

// hookName gives the name of the hook that this git needs.
func (o Options) hookName() string {
	if o.Git.AtLeast(rightDiff) {
		return query.HookName
	}
	return query.CarefulName
}
