package sessions

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cachevalue"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// exitConflict is the exit code of "session cache cas" and "session cache delete" if the present entry differs from the
// expected one.
const exitConflict = 3

// sessionCacheCommand returns the command "session cache" with its subcommands.
func sessionCacheCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "cache COMMAND",
		DisableFlagsInUseLine: true,
		Short:                 "Share test results and build outputs between sessions",
		Long: `Cache stores values under keys on the session remote. All sessions of the session remote share these entries, also those
on other machines. A key names what a value was made from, such as the tree of the sources and the command, so that a
session finds the results of another one. Entries are no part of checkpoints and branches.

A fork of a repository on an artifactfs server has the entries of its parent until either changes them.

Do not trust a value more than the users who may push to the session remote: each of them can change every entry.

-C selects the session whose session remote is used: by the directory of its mount, its name, or a link. With
--session-remote URL no session is needed.`,
		Example: `  artifactfs session cache run "test/$(git rev-parse HEAD:src)" --ttl 30d -- make test
  artifactfs session cache put build/linux app.tar --if-missing
  artifactfs session cache get build/linux --output app.tar
  artifactfs session cache keys test/
  artifactfs session cache gc --max-size 2G --max-age 90d`,
		Args: commandOf("session cache"),
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	cmd.AddCommand(cacheGetCommand(a), cachePutCommand(a), cacheRunCommand(a), cacheCASCommand(a), cacheDeleteCommand(a),
		cacheKeysCommand(a),
		cacheGCCommand(a))
	return cmd
}

// cacheFlags holds the flags that select the session or the session remote.
type cacheFlags struct{ of, remote string }

// add adds the flags to cmd.
func (f *cacheFlags) add(a *cli.App, cmd *cobra.Command) {
	ofFlag(a, cmd, &f.of)
	cmd.Flags().StringVar(&f.remote, "session-remote", "", "use the entries on the git repository `URL`")
}

// work returns the session that the flags select, or only the session remote if they select no session. The value of -C
// may be a link.
func (f cacheFlags) work(ctx context.Context, a *cli.App, verb string) (work, error) {
	link, isLink, err := cli.LinkIn(verb, f.of)
	switch {
	case err != nil:
		return work{}, err
	case isLink && f.remote != "":
		return work{}, &control.Error{Code: control.ExitUsage, Verb: verb, Object: "link",
			Cause: "link already names the session remote: omit --session-remote"}
	case isLink:
		return farWork(ctx, a, link.Remote, link.Session)
	}
	remote, err := cli.FarRemote(verb, f.remote)
	if err != nil {
		return work{}, err
	}
	if remote == "" {
		return SessionOf(ctx, a, verb, f.of)
	}
	return farWork(ctx, a, remote, f.of)
}

// cacheGetCommand returns the command "session cache get".
func cacheGetCommand(a *cli.App) *cobra.Command {
	var flags cacheFlags
	var output string
	cmd := &cobra.Command{
		Use:   "get KEY [--output FILE]",
		Short: "Print the value of a cache entry",
		Long: `Get writes the value of the entry to stdout, or to the file of --output. Nothing is written before the value is complete
and its SHA-256 is verified. If there is no entry, or if it has expired, the exit code is 1. --json prints the
description of the entry instead of its value.`,
		Example: `  artifactfs session cache get test/abc123
  artifactfs session cache get build/linux-$(git rev-parse HEAD^{tree}) --output app.tar
  artifactfs session cache get test/abc123 --json | jq -r .sha256`,
		Args: cli.Arguments(1, 1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := flags.work(cmd.Context(), a, "cache get")
			if err != nil {
				return err
			}
			r := control.CacheGetRequest{Of: w.of, SessionRemote: w.at, Key: args[0]}
			return cachevalue.Get(cmd.Context(), a, w.client, r, output)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "write the value to `FILE`")
	flags.add(a, cmd)
	return cmd
}

// cacheRunCommand returns the command "session cache run".
func cacheRunCommand(a *cli.App) *cobra.Command {
	var flags cacheFlags
	var ttl cli.Days
	cmd := &cobra.Command{
		Use:   "run KEY [--ttl AGE] -- CMD [ARG...]",
		Short: "Print a cache entry, or run a command and store what it prints",
		Long: `Run prints the value of the entry. If there is none, it runs CMD, prints what CMD writes to stdout, and stores it as the
value if CMD exits with 0. Nothing is stored of a command that fails, and stderr is never stored.

Exit code: that of CMD, or 128 plus the number of the signal that killed CMD; 126 if CMD cannot be executed, 127 if it
is not found. If the entry cannot be read or stored, a warning is printed, and the exit code stays that of CMD.`,
		Example: `  artifactfs session cache run "test/$(git rev-parse HEAD:src)" --ttl 30d -- make test
  artifactfs session cache run "plan/$(git rev-parse HEAD^{tree})" -- ./plan --json >plan.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at != 1 || len(args) < 2 || a.JSON {
				return cli.Usage(cmd, errors.New("invalid arguments: want KEY -- CMD [ARG...], without --json"))
			}
			w, err := flags.work(cmd.Context(), a, "cache run")
			if err != nil {
				return err
			}
			r := control.CachePutRequest{Of: w.of, SessionRemote: w.at, Key: args[0], TTL: time.Duration(ttl),
				Actor: session.Actor()}
			return cachevalue.Run(cmd.Context(), a, w.client, r, args[1:])
		},
	}
	cmd.Flags().Var(&ttl, "ttl", "let a new entry expire after `AGE`, such as 24h or 30d")
	flags.add(a, cmd)
	return cmd
}

// cachePutCommand returns the command "session cache put".
func cachePutCommand(a *cli.App) *cobra.Command {
	var flags cacheFlags
	var ttl cli.Days
	var ifMissing bool
	cmd := &cobra.Command{
		Use:   "put KEY [FILE|-] [--ttl AGE] [--if-missing]",
		Short: "Store a cache entry",
		Long: `Put stores the contents of FILE, or of stdin, as the value of the entry, and prints the SHA-256 of the value. A value
has at most 64 MiB, and a key at most 1 KiB of text. An existing entry is replaced. With --if-missing it is kept, and
its SHA-256 is printed. Without --ttl, the entry stays until it is deleted or gc removes it.`,
		Example: `  make test | artifactfs session cache put "test/$(git rev-parse HEAD:src)" --ttl 30d
  artifactfs session cache put build/linux app.tar --if-missing`,
		Args: cli.Arguments(1, 2, "KEY [FILE|-]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := control.CachePutRequest{Key: args[0], TTL: time.Duration(ttl), Actor: session.Actor()}
			if ifMissing {
				r.Expect = cacheentry.None
			}
			w, err := flags.work(cmd.Context(), a, "cache put")
			if err != nil {
				return err
			}
			r.Of, r.SessionRemote = w.of, w.at
			reply, err := cachevalue.Put(cmd.Context(), a, w.client, "cache put", r, cli.First(args[1:]))
			if err != nil {
				return err
			}
			if a.JSON {
				return cli.PrintJSON(a.Stdout, reply)
			}
			_, err = fmt.Fprintln(a.Stdout, hashOf(reply.Entry))
			return err
		},
	}
	cmd.Flags().Var(&ttl, "ttl", "let the entry expire after `AGE`, such as 24h or 30d")
	cmd.Flags().BoolVar(&ifMissing, "if-missing", false, "keep an existing entry")
	flags.add(a, cmd)
	return cmd
}

// hashOf returns the SHA-256 of an entry's value, or cacheentry.None if there is no entry.
func hashOf(e *control.CacheEntry) string {
	if e == nil {
		return cacheentry.None
	}
	return e.Hash
}

// changed prints the reply to a conditional change of an entry. If the entry was not as expected, it returns an error
// with the exit code 3.
func changed(a *cli.App, verb, key string, reply control.CacheChangeReply) error {
	var err error
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, reply)
	} else {
		_, err = fmt.Fprintln(a.Stdout, hashOf(reply.Entry))
	}
	if err != nil || reply.Done {
		return err
	}
	e := &control.Error{Code: exitConflict, Kind: control.CodeConflict, Verb: verb, Object: key,
		Cause: "entry has another value than expected: its SHA-256 is " + hashOf(reply.Entry),
		Hint: "read the entry with artifactfs session cache get, and repeat the command with --expect " +
			hashOf(reply.Entry)}
	if reply.Entry == nil {
		e.Cause = "entry has another value than expected: there is no entry"
	}
	return e
}

// cacheCASCommand returns the command "session cache cas".
func cacheCASCommand(a *cli.App) *cobra.Command {
	var flags cacheFlags
	var ttl cli.Days
	var expect string
	cmd := &cobra.Command{
		Use:   "cas KEY --expect HASH|none [FILE|-] [--ttl AGE]",
		Short: "Replace a cache entry if it has an expected value",
		Long: `Cas stores the contents of FILE, or of stdin, only if the SHA-256 of the present value is HASH, or if there is no entry
and HASH is none. Of several cas commands at the same time with the same HASH exactly one succeeds. Cas prints the
SHA-256 of the value that the entry then has. If the entry is not as expected, it stays, and the exit code is 3.`,
		Example: `  hash=$(artifactfs session cache get plan --json | jq -r .sha256)
  artifactfs session cache get plan | sed s/open/taken/ | artifactfs session cache cas plan --expect "$hash"
  echo worker-7 | artifactfs session cache cas leader --expect none --ttl 10m`,
		Args: cli.Arguments(1, 2, "KEY [FILE|-]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if expect == "" || cacheentry.ValidExpect(expect) != nil {
				return cli.Usage(cmd, errors.New("--expect is missing or invalid: want the SHA-256 of the present value, or none"))
			}
			w, err := flags.work(cmd.Context(), a, "cache cas")
			if err != nil {
				return err
			}
			r := control.CachePutRequest{Key: args[0], TTL: time.Duration(ttl), Expect: expect, Actor: session.Actor(),
				Of: w.of, SessionRemote: w.at}
			reply, err := cachevalue.Put(cmd.Context(), a, w.client, "cache cas", r, cli.First(args[1:]))
			if err != nil {
				return err
			}
			return changed(a, "cache cas", args[0], reply)
		},
	}
	cmd.Flags().StringVar(&expect, "expect", "", "`HASH` of the present value, or none")
	cmd.Flags().Var(&ttl, "ttl", "let the entry expire after `AGE`, such as 24h or 30d")
	flags.add(a, cmd)
	return cmd
}

// cacheDeleteCommand returns the command "session cache delete".
func cacheDeleteCommand(a *cli.App) *cobra.Command {
	var flags cacheFlags
	var expect string
	cmd := &cobra.Command{
		Use:   "delete KEY [--expect HASH]",
		Short: "Remove a cache entry",
		Long: `Delete removes the entry. With --expect it removes the entry only if the SHA-256 of its value is HASH; otherwise the
exit code is 3, and the present SHA-256 is printed. If there is no entry, the exit code is 1.`,
		Example: `  artifactfs session cache delete test/abc123`,
		Args:    cli.Arguments(1, 1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if expect == cacheentry.None || cacheentry.ValidExpect(expect) != nil {
				return cli.Usage(cmd, errors.New("--expect is invalid: want the SHA-256 of the present value"))
			}
			w, err := flags.work(cmd.Context(), a, "cache delete")
			if err != nil {
				return err
			}
			reply, err := control.NewCacheClient(w.client).Delete(cmd.Context(),
				control.CacheDeleteRequest{Of: w.of, SessionRemote: w.at, Key: args[0], Expect: expect})
			switch {
			case err != nil:
				return cli.Failure("cache delete", args[0], err)
			case reply.Done && !a.JSON:
				return nil
			}
			return changed(a, "cache delete", args[0], reply)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&expect, "expect", "", "remove the entry only if the SHA-256 of its value is `HASH`")
	flags.add(a, cmd)
	return cmd
}

// cacheKeysCommand returns the command "session cache keys".
func cacheKeysCommand(a *cli.App) *cobra.Command {
	var flags cacheFlags
	var expired bool
	cmd := &cobra.Command{
		Use:   "keys [PREFIX]",
		Short: "List cache entries",
		Long: `Keys lists the entries whose keys begin with PREFIX, or all entries. It fetches no values. --expired also lists entries
that have expired and that gc has not removed yet.`,
		Example: `  artifactfs session cache keys test/
  artifactfs session cache keys --session-remote https://git.example.org/work.git --json | jq -r '.entries[].key'`,
		Args: cli.Arguments(0, 1, "[PREFIX]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := flags.work(cmd.Context(), a, "cache keys")
			if err != nil {
				return err
			}
			return cacheKeys(cmd.Context(), a, w, cli.First(args), expired)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&expired, "expired", false, "also list entries that have expired")
	flags.add(a, cmd)
	return cmd
}

// cacheKeys prints the entries whose keys begin with a prefix.
func cacheKeys(ctx context.Context, a *cli.App, w work, prefix string, expired bool) error {
	all := control.CacheKeysReply{Entries: []control.CacheEntry{}}
	for after := ""; ; {
		reply, err := control.NewCacheClient(w.client).Keys(ctx,
			control.CacheKeysRequest{Of: w.of, SessionRemote: w.at, Prefix: prefix, Expired: expired, After: after})
		if err != nil {
			return cli.Failure("cache keys", prefix, err)
		}
		all.Entries, all.Damaged = append(all.Entries, reply.Entries...), reply.Damaged
		if !reply.More {
			break
		}
		after = all.Entries[len(all.Entries)-1].Key
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, all)
	}
	if all.Damaged > 0 && !a.Quiet {
		fmt.Fprintf(a.Stderr,
			"artifactfs: %d refs of cache entries contain no entry (artifactfs session cache gc removes them)\n", all.Damaged)
	}
	if len(all.Entries) == 0 {
		return nil
	}
	now := time.Now()
	t := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SIZE\tSTORED\tEXPIRES\tBY\tKEY")
	for _, e := range all.Entries {
		expires := "never"
		if !e.Expires.IsZero() {
			expires = e.Expires.Local().Format(time.DateTime)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", cli.BytesOf(e.Size), cli.Ago(e.Time, now), expires,
			cli.OneLine(e.Actor), cli.OneLine(e.Key))
	}
	return cli.Printed(t.Flush())
}

// cacheGCCommand returns the command "session cache gc".
func cacheGCCommand(a *cli.App) *cobra.Command {
	var flags cacheFlags
	var size cli.Size
	var age cli.Days
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc [--max-size SIZE] [--max-age AGE] [--dry-run]",
		Short: "Remove expired and old cache entries",
		Long: `Gc removes the entries that have expired. With --max-age it also removes those that were stored longer ago, and with
--max-size the oldest ones until the remaining values fit into SIZE. The git server frees the space with its own gc.
Nothing else removes entries without being asked to.`,
		Example: `  artifactfs session cache gc --dry-run
  artifactfs session cache gc --max-size 2G --max-age 90d`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := flags.work(cmd.Context(), a, "cache gc")
			if err != nil {
				return err
			}
			reply, err := control.NewCacheClient(w.client).GC(cmd.Context(),
				control.CacheGCRequest{Of: w.of, SessionRemote: w.at,
					MaxSize: int64(size), MaxAge: time.Duration(age), DryRun: dryRun})
			if err != nil {
				return cli.Failure("cache gc", "", err)
			}
			if a.JSON {
				return cli.PrintJSON(a.Stdout, reply)
			}
			verb := "removed"
			if dryRun {
				verb = "would remove"
			}
			_, err = fmt.Fprintf(a.Stdout, "%s %s entries (%s), kept %s (%s)\n", verb, cli.Count(reply.Count+reply.Damaged),
				cli.BytesOf(reply.Bytes), cli.Count(reply.Kept), cli.BytesOf(reply.Size))
			return err
		},
	}
	cmd.Flags().Var(&size, "max-size", "remove the oldest entries until the values have at most `SIZE`, such as 500M")
	cmd.Flags().Var(&age, "max-age", "remove entries that are older than `AGE`, such as 30d")
	cmd.Flags().BoolVarP(&dryRun, "dry-run", "n", false, "only print what would be removed")
	flags.add(a, cmd)
	return cmd
}
