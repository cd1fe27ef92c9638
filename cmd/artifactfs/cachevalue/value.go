// Package cachevalue moves the values of cache entries between programs, files and the daemon. The daemon reads and
// writes values in temporary files of the state directory.
package cachevalue

import (
	"context"
	"io"
	"os"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// spool creates an empty temporary file in the state directory. The returned function remove closes the file and
// removes it.
func spool(a *cli.App) (file *os.File, remove func() error, err error) {
	return disk.TempFile(a.State, "cache-value")
}

// Get prints the value of an entry, or writes it to the file output. With --json, Get prints the description of the
// entry, and writes the value only if output names a file.
func Get(ctx context.Context, a *cli.App, c *control.Client, r control.CacheGetRequest, output string) error {
	r.Describe = a.JSON && output == ""
	file, remove, err := spool(a)
	if err != nil {
		return cli.Failure("cache get", r.Key, err)
	}
	defer remove()
	if !r.Describe {
		r.Output = file.Name()
	}
	reply, err := control.NewCacheClient(c).Get(ctx, r)
	if err != nil {
		return cli.Failure("cache get", r.Key, err)
	}
	if !r.Describe {
		if err := deliver(a, file, output); err != nil {
			return cli.Failure("cache get", r.Key, err)
		}
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply.Entry)
	}
	return nil
}

// deliver copies a value to stdout, or to the file output.
func deliver(a *cli.App, value io.Reader, output string) error {
	to := a.Stdout
	if output != "" {
		file, err := os.Create(output)
		if err != nil {
			return err
		}
		defer file.Close()
		to = file
	}
	if _, err := io.Copy(to, value); err != nil {
		return err
	}
	if output != "" {
		return to.Close()
	}
	return nil
}

// Put stores the contents of the file name, or of stdin if name is "" or "-". The parameter verb names the command in
// error messages.
func Put(
	ctx context.Context, a *cli.App, c *control.Client, verb string, r control.CachePutRequest, name string,
) (control.CacheChangeReply, error) {
	from := os.Stdin
	if name != "" && name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return control.CacheChangeReply{}, cli.Failure(verb, r.Key, err)
		}
		defer file.Close()
		from = file
	}
	// The daemon reads the value several times, and it must not change in between, so copy it to a temporary file.
	file, remove, err := spool(a)
	if err != nil {
		return control.CacheChangeReply{}, cli.Failure(verb, r.Key, err)
	}
	defer remove()
	n, err := io.Copy(file, io.LimitReader(from, cacheentry.MaxValue+1))
	if err == nil && n > cacheentry.MaxValue {
		return control.CacheChangeReply{}, &control.Error{Code: control.ExitUsage, Kind: control.CodeUsage, Verb: verb,
			Object: r.Key,
			Cause:  cacheentry.ErrTooLarge.Error(), Hint: "store the value elsewhere, and its name in the entry"}
	}
	if err != nil {
		return control.CacheChangeReply{}, cli.Failure(verb, r.Key, err)
	}
	r.File = file.Name()
	reply, err := control.NewCacheClient(c).Put(ctx, r)
	if err != nil {
		return reply, cli.Failure(verb, r.Key, err)
	}
	return reply, nil
}
