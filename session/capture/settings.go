package capture

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// attributesName is the name of the files that assign git attributes, which control conversions.
const attributesName = ".gitattributes"

// fetchWait is the timeout for fetching the contents of one ignore file or .gitattributes file.
const fetchWait = 5 * time.Second

// ignoreSettings are the ignore rules that git reads from files outside of the working tree.
type ignoreSettings struct {
	fold      bool   // value of core.ignoreCase
	user, own globs  // rules of core.excludesFile and of info/exclude
	print     string // hash of these rules and of Options.Rules
}

// userIgnore caches the values of core.excludesFile and core.ignoreCase. The values are valid while the files that
// configFiles lists have the attributes in stats.
type userIgnore struct {
	stats []fileStat // attributes of the files that configFiles lists
	file  string     // path of core.excludesFile
	fold  bool       // value of core.ignoreCase
}

// configFiles returns the names of the configuration files that may set core.excludesFile. It does not list files that
// these files include, so changes of included files are not noticed.
func (o *Options) configFiles() []string {
	files := []string{filepath.Join(o.GitDir, "config"), "/etc/gitconfig", filepath.Join(o.configHome(), "git", "config")}
	if home := gitcmd.Variable(o.environment(), "HOME"); home != "" {
		files = append(files, filepath.Join(home, ".gitconfig"))
	}
	for _, name := range []string{"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"} {
		if file := gitcmd.Variable(o.environment(), name); file != "" {
			files = append(files, file)
		}
	}
	return files
}

// configHome returns $XDG_CONFIG_HOME or its default.
func (o *Options) configHome() string {
	if dir := gitcmd.Variable(o.environment(), "XDG_CONFIG_HOME"); dir != "" {
		return dir
	}
	home := gitcmd.Variable(o.environment(), "HOME")
	if home == "" {
		return "/nonexistent"
	}
	return filepath.Join(home, ".config")
}

// environment returns o.Environment, or that of this process if it is empty, without the variables of git that select a
// repository.
func (o *Options) environment() []string {
	if len(o.Environment) == 0 {
		return gitcmd.Environ(nil)
	}
	return gitcmd.Environ(o.Environment)
}

// configVariables returns, sorted, the variables of the environment that determine where git reads the user's
// configuration, and those that contain settings.
func (o *Options) configVariables() []string {
	list := slices.DeleteFunc(o.environment(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name != "HOME" && name != "XDG_CONFIG_HOME" && !strings.HasPrefix(name, "GIT_CONFIG_")
	})
	slices.Sort(list)
	return list
}

// ignoreSettings returns the ignore rules of core.excludesFile and info/exclude. It runs git config only if a
// configuration file has changed since the previous call.
func (c *Capturer) ignoreSettings(ctx context.Context) (ignoreSettings, error) {
	var stats []fileStat
	for _, name := range c.o.configFiles() {
		st, err := statOf(name)
		// A configuration file that cannot be examined counts as missing: statOf has returned zero attributes for the file.
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			st = fileStat{}
		}
		stats = append(stats, st)
	}
	if !equalStats(stats, c.user.stats) {
		out, err := c.git(ctx, gitRun{quiet: true}, "config", "--type=path", "--get", "core.excludesFile")
		if err != nil {
			return ignoreSettings{}, err
		}
		fold, err := c.git(ctx, gitRun{quiet: true}, "config", "--type=bool", "--get", "core.ignoreCase")
		if err != nil {
			return ignoreSettings{}, err
		}
		c.user = userIgnore{stats, strings.TrimSuffix(string(out), "\n"), string(fold) == "true\n"}
		// This is git's default for core.excludesFile.
		if c.user.file == "" {
			c.user.file = filepath.Join(c.o.configHome(), "git", "ignore")
		}
	}
	user, own := readRules(c.user.file), readRules(filepath.Join(c.o.GitDir, "info", "exclude"))
	// The hash covers every rule from outside of the working tree, and the place of the user's configuration, which has
	// the filters. The method freezeView compares this hash with the hash that the previous checkpoint recorded.
	sum := sha256.New()
	fmt.Fprintf(sum, "%v\x00%q\x00%q\x00%+v\x00%q", c.user.fold, user, own, c.o.Rules, c.o.configVariables())
	// When a directory becomes a linked worktree, or stops being one, other rules apply in it.
	for _, r := range c.roots {
		fmt.Fprintf(sum, "\x00%q\x00%q", r.name, r.path)
	}
	return ignoreSettings{c.user.fold, parseIgnore(user, c.user.fold), parseIgnore(own, c.user.fold),
		hex.EncodeToString(sum.Sum(nil)[:16])}, nil
}

func equalStats(a, b []fileStat) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// readRules returns the text of an ignore file. Like git, it treats an unreadable file as an empty one.
func readRules(name string) []byte {
	st, err := os.Stat(name)
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxIgnoreFile {
		return nil
	}
	text, err := disk.ReadRegular(name, maxIgnoreFile)
	if err != nil {
		return nil
	}
	return text
}

// gitRun configures one run of git.
type gitRun struct {
	dir   string   // working directory; "" means the working directory of this process
	env   []string // additional environment variables
	in    string   // standard input of git
	quiet bool     // treat exit status 1 as empty output: git config exits with 1 if the setting has no value
}

// git runs stock git on the mount's git directory and returns its standard output. The command must not access the
// working tree in the mount.
func (c *Capturer) git(ctx context.Context, r gitRun, args ...string) ([]byte, error) {
	repo, err := guard.Open(ctx, c.o.GitDir)
	if err != nil {
		return nil, err
	}
	repo.Options = []string{"-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsmonitor=false", "-c",
		"core.untrackedCache=false"}
	// The user's configuration is not hidden from git, because it decides about conversions and ignored files.
	repo.Base = append(c.o.environment(), gitcmd.NoLocks)
	repo.Cwd, repo.Env = cmp.Or(r.dir, "/"), r.env
	out, err := repo.Output(ctx, r.in, args...)
	if r.quiet && gitcmd.Exited(err, 1) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}
