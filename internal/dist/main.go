// Command dist writes the parts of a release that no other tool writes: an archive with a container image in the OCI
// layout, and a list of the modules in a program. `make dist` runs it.
//
//	dist image -o FILE -tag NAME ARCH=DIR...   DIR is the file tree of the image for ARCH (amd64, arm64)
//	dist sbom -o FILE PROGRAM                  PROGRAM is a program that the go command built
//
// The same input produces the same bytes: all times are $SOURCE_DATE_EPOCH, in seconds since 1970, and files are sorted
// by name.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// main runs the command. If it fails, main prints the error and exits with status 1.
func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "dist: %v\n", err)
		os.Exit(1)
	}
}

// run executes one command. args are the arguments of the program, without its name.
func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: dist image|sbom -o FILE OPERAND")
	}
	when, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	flags := flag.NewFlagSet("dist "+args[0], flag.ContinueOnError)
	out := flags.String("o", "", "write to `FILE`")
	tag := flags.String("tag", "artifactfs:latest", "`NAME` of the image")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *out == "" || flags.NArg() == 0 {
		return fmt.Errorf("run %s: -o FILE and an operand are required", args[0])
	}
	f, err := os.Create(*out)
	if err != nil {
		return err
	}
	// This call closes the file if an error occurs. The call of Close at the end of the function reports errors of
	// delayed writes.
	defer f.Close()
	switch args[0] {
	case "image":
		var trees []tree
		for _, operand := range flags.Args() {
			arch, dir, ok := strings.Cut(operand, "=")
			if !ok {
				return fmt.Errorf("write image: argument %q does not have the form ARCH=DIR", operand)
			}
			trees = append(trees, tree{arch, dir})
		}
		err = writeImage(f, *tag, trees, when)
	case "sbom":
		err = writeSBOM(f, flags.Arg(0), when)
	default:
		err = fmt.Errorf("run dist: unknown command %q", args[0])
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// sourceDate returns the time of all files of a release. seconds is the value of SOURCE_DATE_EPOCH, which
// reproducible-builds.org defines as a number of seconds since 1970.
func sourceDate(seconds string) (time.Time, error) {
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read SOURCE_DATE_EPOCH: %q is not a number of seconds", seconds)
	}
	return time.Unix(n, 0).UTC(), nil
}
