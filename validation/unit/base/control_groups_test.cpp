// What control groups grant, of folders as Slurm, systemd and containers make them.
#include "base/control_groups.hpp"

#include <gtest/gtest.h>

#include "../scratch.hpp"

namespace tessera::control_groups_test {
namespace {

/// A pretended /proc and /sys.
class Groups : public testing::Test {
 protected:
  void of_process(const std::string& lines) { write("proc/self/cgroup", lines); }
  void write(const std::string& path, const std::string& text) {
    test::fs::create_directories(test::fs::path(root / path).parent_path());
    test::spill(root / path, text);
  }
  void memory(const std::string& group, const std::string& limit, std::uint64_t used, std::uint64_t cached = 0) {
    const std::string at = "sys/fs/cgroup" + group + "/memory.";
    write(at + "max", limit + "\n"), write(at + "current", std::to_string(used) + "\n");
    write(at + "stat", "anon 1\ninactive_file " + std::to_string(cached) + "\n");
  }
  GroupLimits limits() { return group_limits(root.path()); }
  test::Scratch root;
};

TEST_F(Groups, NoneLimitNothing) {
  EXPECT_FALSE(limits().memory || limits().memory_left || limits().processes);
  of_process("0::/\n");
  memory("", "max", 1);
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_FALSE(limits().memory || limits().memory_left || limits().processes);
  EXPECT_EQ(limits().fewest_cores(), 0);
}

// Slurm's --mem: the step's group has the limit, the task's and the root have none.
TEST_F(Groups, AllAboveCount) {
  of_process("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
  memory("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "max", 100);
  memory("/system.slice/slurmstepd.scope/job_7/step_0/user", "max", 300);
  memory("/system.slice/slurmstepd.scope/job_7/step_0", "8000", 7000, 500);
  memory("/system.slice/slurmstepd.scope/job_7", "9000", 8800);
  memory("/system.slice", "max", 100000);
  write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpu.max", "250000 100000\n");
  write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/pids.max", "77\n");
  const GroupLimits l = limits();
  EXPECT_EQ(l.memory, 8000u);
  EXPECT_EQ(l.memory_group, "/system.slice/slurmstepd.scope/job_7/step_0");
  EXPECT_EQ(l.memory_left, 200u) << "of the job, whose other steps have used its memory";
  EXPECT_EQ(l.fewest_cores(), 2.5);
  ASSERT_EQ(l.cores.size(), 2u);
  EXPECT_EQ(l.cores.front().group, "/system.slice/slurmstepd.scope/job_7/step_0");
  EXPECT_EQ(l.processes, 77);
}

// A container without a namespace of groups sees the host's path and its own files; with one it may see a path above its root.
TEST_F(Groups, WhatANamespaceHidesIsItsRoot) {
  memory("", "5000", 5200);
  for (const char* path : {"/docker/abc", "/../../user.slice", "/"}) {
    of_process(std::string("0::") + path + "\n");
    EXPECT_EQ(limits().memory, 5000u) << path;
    EXPECT_EQ(limits().memory_left, 0u) << path;
  }
}

TEST_F(Groups, OfVersion1) {
  of_process("9:memory:/slurm/uid_1/job_2\n4:cpu,cpuacct:/slurm/uid_1/job_2\n1:name=systemd:/\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.limit_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.usage_in_bytes", "1500\n");
  write("sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
  write("sys/fs/cgroup/cpu,cpuacct/slurm/uid_1/job_2/cpu.cfs_quota_us", "150000\n");
  write("sys/fs/cgroup/cpu,cpuacct/slurm/uid_1/job_2/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const GroupLimits l = limits();
  EXPECT_EQ(l.memory, 4000u);
  EXPECT_EQ(l.memory_left, 3000u);
  EXPECT_EQ(l.fewest_cores(), 1.5);
  EXPECT_EQ(l.cores.size(), 1u);
}

}  // namespace
}  // namespace tessera::control_groups_test
