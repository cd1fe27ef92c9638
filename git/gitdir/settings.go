package gitdir

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/lazy"
)

// Checkout contains the settings that determine, together with the tree, the contents of files that are checked out.
// The fields hold unparsed text, so that they can be stored.
type Checkout struct {
	Config []byte `json:"config"` // entries of git config -z --list that these settings and git-lfs use
	// SHA-256 of the output of git config -z --list, on which unknown filter drivers may depend
	All     []byte `json:"all"`
	Machine []byte `json:"machine"` // system-wide gitattributes file
	User    []byte `json:"user"`    // the user's gitattributes file
	Own     []byte `json:"own"`     // info/attributes in the git directory
	// LocalLFS is true if the configuration in the git directory may contain settings by which git-lfs leaves out files.
	LocalLFS bool `json:"local_lfs"`
}

// ReadCheckout reads the configuration and the attributes of the user and of the system, and the attributes in the git
// directory gitDir if it exists. env is the environment of the user; if it is empty, the environment of this process is
// used. The field of a missing file is empty, and Config is empty if git is not installed. Relative paths in the
// configuration are not supported. The settings in own replace those of the user.
func ReadCheckout(ctx context.Context, gitDir string, env []string, own ...Setting) (c Checkout) {
	env = environment(env)
	// Outside of a repository, git reads only the configuration of the user and of the system.
	cmd := gitcmd.New(ctx, "config", "-z", "--list")
	cmd.Env = withSettings(gitcmd.Environ(env), own)
	if out, err := cmd.Output(); err == nil {
		sum := sha256.Sum256(out)
		c.Config, c.All = usedEntries(out), sum[:]
	}
	_, attributes := parseSettings(string(c.Config))
	home := gitcmd.Variable(env, "HOME")
	if attributes == "" {
		attributes = filepath.Join(cmp.Or(gitcmd.Variable(env, "XDG_CONFIG_HOME"), "~/.config"), "git", "attributes")
	}
	read := func(path string) []byte {
		content, err := disk.ReadRegular(expandUser(path, home), disk.LargeFile)
		if err != nil {
			return nil // like git, ignore a file that cannot be read
		}
		return content
	}
	if !isTrue(gitcmd.Variable(env, "GIT_ATTR_NOSYSTEM")) {
		c.Machine = read(machineAttributes())
	}
	c.User, c.Own = read(attributes), read(filepath.Join(gitDir, "info", "attributes"))
	c.LocalLFS = convert.LeavesOutLFS(read(filepath.Join(gitDir, "config")))
	return c
}

// usedEntries returns the entries of the output of git config -z --list that a Checkout contains.
func usedEntries(list []byte) (used []byte) {
	for entry := range bytes.SplitAfterSeq(list, []byte{0}) {
		key, _, _ := strings.Cut(strings.TrimSuffix(string(entry), "\x00"), "\n")
		if InCheckout(key) {
			used = append(used, entry...)
		}
	}
	return used
}

// InCheckout reports whether a Checkout contains the setting called name, as git config --list prints it.
func InCheckout(name string) bool {
	switch name {
	case "core.autocrlf", "core.eol", "core.ignorecase", "core.attributesfile", "core.symlinks",
		"clone.defaultremotename", "core.bigfilethreshold":
		return true
	}
	return strings.HasPrefix(name, "filter.") || convert.LeavesOutLFS([]byte(name))
}

// withSettings returns the environment env with variables by which git has further settings.
func withSettings(env []string, settings []Setting) []string {
	if len(settings) == 0 {
		return env
	}
	n, _ := strconv.Atoi(gitcmd.Variable(env, "GIT_CONFIG_COUNT")) // git refuses anything but a number
	for i, s := range settings {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", n+i, s.Name),
			fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n+i, s.Value))
	}
	return append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", n+len(settings)))
}

// LinksAsFiles reports whether core.symlinks is false: git then checks out symbolic links as files that contain the
// target.
func (c Checkout) LinksAsFiles() bool {
	value, ok := c.setting("core.symlinks")
	return ok && !isTrue(value)
}

// RemoteName returns the value of clone.defaultRemoteName, or "".
func (c Checkout) RemoteName() string {
	name, _ := c.setting("clone.defaultremotename")
	return name
}

// bigFile is git's default of core.bigFileThreshold.
const bigFile = "512m"

// StreamsSmall reports whether core.bigFileThreshold is less than git's default. git then streams small files into a
// pack and, before it keeps one, asks the remote for it, although no remote can have a file that the user has just
// written.
func (c Checkout) StreamsSmall() bool {
	value, _ := c.setting("core.bigfilethreshold")
	size, limit := bytesOf(value), bytesOf(bigFile)
	return size > 0 && size < limit
}

// bytesOf parses a number of bytes as git does: with the suffix k, m or g, or without one. For anything else it returns
// 0.
func bytesOf(value string) int64 {
	value = strings.ToLower(value)
	number := strings.TrimRight(value, "kmg")
	n, err := strconv.ParseInt(number, 10, 64)
	shift, ok := map[string]int{"": 0, "k": 10, "m": 20, "g": 30}[value[len(number):]]
	if err != nil || !ok {
		return 0
	}
	return n << shift
}

// setting returns the last value of a setting in Config. The result ok is false if the setting is missing or has no
// value.
func (c Checkout) setting(name string) (value string, ok bool) {
	for entry := range strings.SplitSeq(string(c.Config), "\x00") {
		if key, v, has := strings.Cut(entry, "\n"); key == name {
			value, ok = v, has
		}
	}
	return value, ok
}

// Size returns the total size of the settings in bytes.
func (c Checkout) Size() int { return len(c.Config) + len(c.Machine) + len(c.User) + len(c.Own) }

// Settings returns the parsed settings. env is the environment of filter programs, as for ReadCheckout.
func (c Checkout) Settings(env []string) convert.Settings {
	s, _ := parseSettings(string(c.Config))
	s.Outside = convert.NewOutside(c.Machine, c.User, c.Own, s.IgnoreCase)
	for name, d := range s.Drivers {
		d.Shared = c.lfs(d, environment(env))
		s.Drivers[name] = d
	}
	return s
}

// Digest returns a string that differs for settings and environments with which the files of a mount may have other
// contents.
func (c Checkout) Digest(env []string) string {
	h := sha256.New()
	add := func(b []byte) { fmt.Fprintf(h, "%d:%s", len(b), b) }
	for _, b := range [][]byte{c.Config, c.Machine, c.User, c.Own} {
		add(b)
	}
	private := false
	drivers := c.Settings(env).Drivers
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		d := drivers[name]
		add([]byte(d.Shared))
		private = private || d.Shared == "" && (d.Smudge != "" || d.Process != "")
	}
	if private { // the driver may read any variable and any setting
		add(c.All)
		for _, v := range slices.Sorted(slices.Values(environment(env))) {
			add([]byte(v))
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// environment returns env, or the environment of this process if env is empty.
func environment(env []string) []string {
	if len(env) == 0 {
		return os.Environ()
	}
	return env
}

// lfsCommand matches the commands of git-lfs that replace every pointer by the contents that it names.
var lfsCommand = lazy.Regexp(`^(\S*/)?git[- ]lfs (filter-process|smudge)( --)?( %f)?$`)

// lfs returns the value of convert.Driver.Shared for d. It is the identity of git-lfs if neither the environment nor
// the configuration makes git-lfs leave out files, and "" otherwise.
func (c Checkout) lfs(d convert.Driver, env []string) string {
	match := lfsCommand().FindStringSubmatch(cmp.Or(d.Process, d.Smudge))
	switch gitcmd.Variable(env, "GIT_LFS_SKIP_SMUDGE") {
	case "", "0", "false":
	default:
		return ""
	}
	if match == nil || c.LocalLFS {
		return ""
	}
	for entry := range strings.SplitSeq(string(c.Config), "\x00") {
		if key, value, _ := strings.Cut(entry, "\n"); value != "" && convert.LeavesOutLFS([]byte(key)) {
			return ""
		}
	}
	for dir := range strings.SplitSeq(gitcmd.Variable(env, "PATH"), ":") {
		path := filepath.Join(dir, "git-lfs")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return fmt.Sprintf("%s%s %d %d", match[1], path, info.Size(), info.ModTime().UnixNano())
		}
	}
	return ""
}

// parseSettings parses the output of git config -z --get-regexp: each entry is a key, followed by a line feed and the
// value if there is one. The result attributes is the value of core.attributesFile.
func parseSettings(out string) (s convert.Settings, attributes string) {
	drivers, silenced := map[string]convert.Driver{}, map[string]bool{}
	for entry := range strings.SplitSeq(out, "\x00") {
		key, value, hasValue := strings.Cut(entry, "\n")
		switch key {
		case "core.autocrlf":
			s.AutoCRLF = strings.ToLower(value)
			if !hasValue {
				s.AutoCRLF = "true"
			}
		case "core.eol":
			s.EOL = strings.ToLower(value)
		case "core.ignorecase":
			s.IgnoreCase = !hasValue || isTrue(value)
		case "core.attributesfile":
			attributes = value
		}
		name, ok := strings.CutPrefix(key, "filter.")
		end := strings.LastIndexByte(name, '.')
		if !ok || end < 0 {
			continue
		}
		d := drivers[name[:end]]
		d.Name = name[:end]
		switch name[end+1:] {
		case "smudge":
			// If the value is empty, git runs no command, but it still reads the file into memory instead of streaming it.
			d.Smudge, d.Clean = value, d.Clean || value == ""
		case "process":
			d.Process, silenced[d.Name] = value, value == ""
		case "clean":
			d.Clean = true
		case "required":
			d.Required = !hasValue || isTrue(value)
		}
		drivers[d.Name] = d
	}
	for name := range silenced {
		// If filter.NAME.process is set but empty, git ignores smudge and clean, and converts nothing.
		if d := drivers[name]; silenced[name] {
			d.Smudge, d.Clean = "", true
			drivers[name] = d
		}
	}
	s.Drivers = drivers
	return s, attributes
}

// isTrue parses a boolean by git's rules.
func isTrue(value string) bool {
	switch strings.ToLower(value) {
	case "true", "yes", "on":
		return true
	}
	n, err := strconv.Atoi(value)
	return err == nil && n != 0
}

// machineAttributes returns the path of the system-wide gitattributes file. It is below the installation prefix of git,
// or in /etc if that prefix is /usr.
func machineAttributes() string {
	prefix := gitPrefix()
	if prefix == "/usr" {
		prefix = "/"
	}
	return filepath.Join(prefix, "etc", "gitattributes")
}

// gitPrefix returns the installation prefix of git.
func gitPrefix() string {
	path, err := gitcmd.LookPath()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "/usr"
	}
	return filepath.Dir(filepath.Dir(path))
}

// expandUser expands ~, which is the directory home, ~USER and %(prefix) in a path, by the rules of git's
// configuration.
func expandUser(path, home string) string {
	if rest, ok := strings.CutPrefix(path, "%(prefix)/"); ok {
		return filepath.Join(gitPrefix(), rest)
	}
	if !strings.HasPrefix(path, "~") {
		return path
	}
	name, rest, _ := strings.Cut(path[1:], "/")
	if name != "" {
		u, err := user.Lookup(name)
		if err != nil {
			return path
		}
		home = u.HomeDir
	}
	return filepath.Join(home, rest)
}
