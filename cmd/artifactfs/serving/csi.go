package serving

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// csiProgram is the name of the program with the CSI driver (cmd/artifactfs-csi). It is installed in the same directory
// as this program.
const csiProgram = "artifactfs-csi"

// CSICommand returns the command "csi". It passes its flags to the driver, which is a separate program.
func CSICommand(*cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "csi",
		Short: "Make mounts volumes of Kubernetes pods (CSI driver)",
		Long: `Csi is a driver of the Container Storage Interface: pods get mounts of repositories as volumes. The driver is the
program artifactfs-csi, which must be in the same directory as artifactfs; its help describes the flags.`,
		Example:            `  artifactfs csi --node "$NODE" --registration-dir /registration`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := runCSI(args)
			if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
				return cmd.Help() // Without the driver, which prints its own help, print the help of this command.
			}
			return err
		},
	}
}

// runCSI replaces this process by the driver. It returns only if this fails.
func runCSI(args []string) error {
	path, err := exec.LookPath(csiProgram)
	if own, executableErr := os.Executable(); executableErr == nil {
		if beside := filepath.Join(filepath.Dir(own), csiProgram); unix.Access(beside, unix.X_OK) == nil {
			path, err = beside, nil
		}
	}
	if err == nil {
		err = unix.Exec(path, append([]string{csiProgram}, args...), os.Environ())
	}
	return &control.Error{Code: control.ExitFailed, Verb: "start", Object: csiProgram, Cause: err.Error(),
		Hint: "install " + csiProgram + " in the directory of artifactfs; make install does it"}
}
