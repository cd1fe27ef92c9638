// A small command line for JGit: clone, commit, push, fetch and show. The tests describe its arguments (suite_test.go).
import java.io.File;
import java.nio.file.Files;
import java.util.Map;
import org.eclipse.jgit.api.Git;
import org.eclipse.jgit.api.TransportCommand;
import org.eclipse.jgit.lib.ObjectId;
import org.eclipse.jgit.revwalk.RevWalk;
import org.eclipse.jgit.storage.file.FileRepositoryBuilder;
import org.eclipse.jgit.treewalk.TreeWalk;
import org.eclipse.jgit.transport.PushResult;
import org.eclipse.jgit.transport.RefSpec;
import org.eclipse.jgit.transport.RemoteRefUpdate;
import org.eclipse.jgit.transport.TransportHttp;
import org.eclipse.jgit.transport.UsernamePasswordCredentialsProvider;

public class JGit {
  static <C extends TransportCommand<C, ?>> C authenticated(C command) {
    String auth = System.getenv("AFS_AUTH"), token = System.getenv("AFS_TOKEN");
    if ("basic".equals(auth)) command.setCredentialsProvider(new UsernamePasswordCredentialsProvider("x", token));
    if ("bearer".equals(auth)) {
      command.setTransportConfigCallback(
          t -> ((TransportHttp) t).setAdditionalHeaders(Map.of("Authorization", "Bearer " + token)));
    }
    return command;
  }

  public static void main(String[] args) throws Exception {
    try {
      run(args);
    } catch (Exception e) {
      for (Throwable t = e; t != null; t = t.getCause()) System.err.println(t);
      System.exit(1);
    }
  }

  static void run(String[] args) throws Exception {
    if (args[0].equals("clone")) {
      authenticated(Git.cloneRepository().setURI(args[1]).setDirectory(new File(args[2]))).call().close();
      return;
    }
    // Git.open does not read a file .git.
    try (Git git = new Git(new FileRepositoryBuilder().setWorkTree(new File(args[1])).build())) {
      switch (args[0]) {
        case "commit":
          Files.writeString(new File(args[1], args[2]).toPath(), args[3]);
          git.add().addFilepattern(args[2]).call();
          System.out.println(git.commit().setMessage("change " + args[2] + "\n").setAuthor("foreign", "foreign@localhost")
              .setCommitter("foreign", "foreign@localhost").call().name());
          break;
        case "show":
          try (RevWalk walk = new RevWalk(git.getRepository())) {
            ObjectId commit = ObjectId.fromString(args[2]);
            TreeWalk file = TreeWalk.forPath(git.getRepository(), args[3], walk.parseCommit(commit).getTree());
            git.getRepository().open(file.getObjectId(0)).copyTo(System.out);
          }
          break;
        case "push":
          String source = args[2].isEmpty() ? "" : "refs/heads/" + args[2];
          boolean force = args.length > 4 && args[4].equals("force");
          Iterable<PushResult> results = authenticated(git.push().setRemote("origin")
              .setRefSpecs(new RefSpec((force ? "+" : "") + source + ":refs/heads/" + args[3]))).call();
          for (PushResult result : results) {
            for (RemoteRefUpdate u : result.getRemoteUpdates()) {
              if (u.getStatus() != RemoteRefUpdate.Status.OK) {
                throw new Exception(u.getRemoteName() + ": " + u.getStatus() + " " + u.getMessage());
              }
            }
          }
          break;
        case "fetch":
          authenticated(git.fetch().setRemote("origin")).call();
          System.out.println(git.getRepository().resolve("refs/remotes/origin/main").name());
          break;
        default:
          throw new Exception("unknown command " + args[0]);
      }
    }
  }
}
