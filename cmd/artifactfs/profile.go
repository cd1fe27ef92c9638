package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// profileCommand returns the command "profile" with its subcommands. It needs no daemon: the subcommands work on the
// state directory.
func profileCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "profile list|show|delete",
		Short: "Show and delete read profiles",
		Long: `A read profile lists the files that programs have read after a mount, in the order of the first reads. The next mount
of the same remote with the same profile fetches these files first, in few large requests, before programs read them. A
profile contains paths, so it can be used at any commit; paths that a commit does not have are skipped.

Each mount records the profile that mount --profile names; the default is auto. A recording ends after 2 minutes in
which no program has read a new file, after 30 minutes, after 100,000 files, or at unmount. Files that 8 recordings in a
row do not contain are dropped. If programs have read nearly the whole tree, the profile states only that. With mount
--profile none, nothing is recorded and no profile is used; with mount --prefetch none, nothing is fetched ahead.

Profiles are kept on this host, in the store of the remote. With mount --share-profile, a mount also merges its
recording into the ref refs/afs/profile/NAME of the session remote, and uses the profile of this ref if this host has
none. All users of the session remote can then read the paths. git push URL :refs/afs/profile/NAME deletes it there.`,
		Example: `  artifactfs profile list
  artifactfs profile show build
  artifactfs mount https://example.org/app.git --profile build
  artifactfs run https://example.org/app.git --profile test -- npm test`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("subcommand is missing: want list, show or delete")
			}
			return fmt.Errorf("unknown subcommand %q: want list, show or delete", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(profileListCommand(a), profileShowCommand(a), profileDeleteCommand(a))
	return cmd
}

// profileListCommand returns the command "profile list".
func profileListCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "list [REMOTE]",
		Short: "List the read profiles on this host",
		Long: `List prints a line for each read profile of REMOTE, or of all remotes: its name, the number of its paths, the number
and the time of its recordings, and the remote. "all" instead of a number of paths means that programs read the whole
tree.`,
		Example: `  artifactfs profile list
  artifactfs profile list https://example.org/app.git --json | jq '.profiles[].name'`,
		Args: cli.Arguments(0, 1, "[REMOTE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := storedProfiles(a.State, "", args)
			if err != nil {
				return cli.Failure("profile list", a.State, err)
			}
			return printProfiles(a, list)
		},
	}
}

// profileShowCommand returns the command "profile show".
func profileShowCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME [REMOTE]",
		Short: "Print the paths of a read profile",
		Long: `Show prints the paths of the read profile NAME, one on a line, in the order in which they are fetched. REMOTE is
needed if several remotes have a profile with that name.`,
		Example: `  artifactfs profile show auto
  artifactfs profile show build https://example.org/app.git --json | jq '.paths | length'`,
		Args: cli.Arguments(1, 2, "NAME [REMOTE]"),
		RunE: func(_ *cobra.Command, args []string) error { return showProfile(a, args[0], args[1:]) },
	}
}

// profileDeleteCommand returns the command "profile delete".
func profileDeleteCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME [REMOTE]",
		Short: "Delete a read profile on this host",
		Long: `Delete removes the read profile NAME from this host. A mount that is recording it creates it again when its recording
ends. REMOTE is needed if several remotes have a profile with that name.`,
		Example: `  artifactfs profile delete build
  artifactfs profile delete auto https://example.org/app.git`,
		Args: cli.Arguments(1, 2, "NAME [REMOTE]"),
		RunE: func(_ *cobra.Command, args []string) error { return deleteProfile(a, args[0], args[1:]) },
	}
}

// storedProfile is one profile in the output of `profile list --json`.
type storedProfile struct {
	Name string `json:"name"`
	// URL or path of the remote, without secrets; "" if nothing was fetched from the remote on this host
	Remote string `json:"remote"`
	Paths  int    `json:"paths"` // number of paths in the profile
	Whole  bool   `json:"whole"` // whether the profile stands for the whole tree instead of single paths

	Recordings uint64     `json:"recordings"`         // number of recordings from which the profile was made
	Recorded   *time.Time `json:"recorded,omitempty"` // end of the newest recording
	Error      string     `json:"error,omitempty"`    // reason why the profile cannot be read

	dir     readprofile.Dir
	profile readprofile.Profile
}

// storedProfiles returns the profiles in the stores of a state directory. If name is not "", it returns only profiles
// with that name. If remotes is not empty, it returns only profiles of these remotes.
func storedProfiles(state, name string, remotes []string) ([]storedProfile, error) {
	stores, _, err := statedir.StoreDirs(state)
	if err != nil {
		return nil, err
	}
	list := []storedProfile{}
	for _, store := range stores {
		info, _ := bare.Peek(store)
		if len(remotes) > 0 && !isRemote(info.URL, remotes[0]) {
			continue
		}
		dir := readprofile.DirOf(store)
		names, err := dir.Names()
		if err != nil {
			return nil, err
		}
		for _, found := range names {
			if name != "" && found != name {
				continue
			}
			s := storedProfile{Name: found, Remote: info.URL, dir: dir}
			if s.profile, err = dir.Read(found); err != nil {
				s.Error = err.Error()
			}
			s.Paths, s.Whole, s.Recordings = len(s.profile.Paths), s.profile.Whole, s.profile.Recordings
			if !s.profile.Recorded.IsZero() {
				s.Recorded = &s.profile.Recorded
			}
			list = append(list, s)
		}
	}
	return list, nil
}

// isRemote reports whether the parameter named, from the command line, names the remote with this URL. It compares URLs
// without secrets, or paths.
func isRemote(url, named string) bool {
	abs, err := filepath.Abs(named)
	return url == named || url == statedir.WithoutSecrets(named) || err == nil && url == abs
}

// oneProfile returns the profile with this name. It returns an error with a hint if there is no such profile, or if
// several remotes have a profile with this name.
func oneProfile(a *cli.App, verb, name string, remotes []string) (storedProfile, error) {
	fail := func(code int, kind control.ErrorCode, cause, hint string) error {
		return &control.Error{Code: code, Kind: kind, Verb: verb, Object: name, Cause: cause, Hint: hint}
	}
	if err := readprofile.ValidName(name); err != nil {
		return storedProfile{}, fail(control.ExitUsage, control.CodeUsage, err.Error(), "artifactfs profile list")
	}
	list, err := storedProfiles(a.State, name, remotes)
	switch {
	case err != nil:
		return storedProfile{}, cli.Failure(verb, name, err)
	case len(list) == 0:
		return storedProfile{}, fail(control.ExitFailed, control.CodeNotFound, "no such read profile",
			"artifactfs profile list")
	case len(list) > 1:
		return storedProfile{}, fail(control.ExitUsage, control.CodeUsage, "several remotes have a profile with this name",
			"add REMOTE; artifactfs profile list shows the remotes")
	}
	return list[0], nil
}

// printProfiles prints a table of profiles.
func printProfiles(a *cli.App, list []storedProfile) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string][]storedProfile{"profiles": list})
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	if len(list) > 0 {
		fmt.Fprintln(w, "PROFILE\tPATHS\tRECORDINGS\tLAST\tREMOTE")
	}
	for _, s := range list {
		paths, last := cli.Count(int64(s.Paths)), "-"
		switch {
		case s.Error != "":
			paths = "damaged"
		case s.Whole:
			paths = "all"
		}
		if s.Recorded != nil {
			last = s.Recorded.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", s.Name, paths, s.Recordings, last, cli.OrDash(s.Remote))
	}
	return cli.Printed(w.Flush())
}

// showProfile prints the paths of a profile.
func showProfile(a *cli.App, name string, remotes []string) error {
	s, err := oneProfile(a, "profile show", name, remotes)
	if err == nil && s.Error != "" {
		_, err = s.dir.Read(name)
		err = cli.Failure("profile show", name, err)
	}
	if err != nil {
		return err
	}
	paths := make([]string, len(s.profile.Paths))
	for i, path := range s.profile.Paths {
		paths[i] = path.Name
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, struct {
			Name   string   `json:"name"`
			Remote string   `json:"remote"`
			Paths  []string `json:"paths"`
			Whole  bool     `json:"whole"`
		}{s.Name, s.Remote, paths, s.Whole})
	}
	for _, path := range paths {
		// A path can contain any byte except NUL, so it is printed like the text of an error, on one line.
		if _, err := fmt.Fprintln(a.Stdout, cli.OneLine(path)); err != nil {
			return cli.Printed(err)
		}
	}
	if s.Whole {
		fmt.Fprintln(a.Stderr, "artifactfs: programs read the whole tree")
	}
	return nil
}

// deleteProfile deletes a profile.
func deleteProfile(a *cli.App, name string, remotes []string) error {
	const verb = "profile delete"
	s, err := oneProfile(a, verb, name, remotes)
	if err != nil {
		return err
	}
	if err := s.dir.Delete(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cli.Failure(verb, name, err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string]string{"name": s.Name, "remote": s.Remote})
	}
	_, err = fmt.Fprintf(a.Stdout, "deleted read profile %s of %s\n", s.Name, cli.OrDash(s.Remote))
	return err
}
