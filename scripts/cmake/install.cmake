# cmake --install: the program, decks, job scripts, the script that draws a run, documents. Everything finds its neighbours from where it stands.
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # libraries of modules and of Spack, which the loader does not know

install(DIRECTORY inputs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera FILES_MATCHING PATTERN "*.toml")
install(FILES slurm/common.sh slurm/ends.sh slurm/start.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
install(FILES pbs/common.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/pbs)
# The settings of sites, once there, are the sites'.
install(CODE "
file(GLOB sites RELATIVE \"${PROJECT_SOURCE_DIR}\" \"${PROJECT_SOURCE_DIR}/slurm/site*.sh\" \"${PROJECT_SOURCE_DIR}/slurm/site/*.sh\"
  \"${PROJECT_SOURCE_DIR}/pbs/site*.sh\" \"${PROJECT_SOURCE_DIR}/pbs/site/*.sh\")
foreach(site IN LISTS sites)
  set(there \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/tessera/\${site}\")
  if(EXISTS \"\$ENV{DESTDIR}\${there}\")
    message(STATUS \"keeps \$ENV{DESTDIR}\${there}\")
  else()
    get_filename_component(folder \"\${there}\" DIRECTORY)
    file(INSTALL DESTINATION \"\${folder}\" TYPE FILE FILES \"${PROJECT_SOURCE_DIR}/\${site}\")
  endif()
endforeach()")
file(GLOB job_scripts CONFIGURE_DEPENDS slurm/train_*.sh)
install(PROGRAMS ${job_scripts} slurm/consolidate.sh slurm/finetune.sh slurm/local.sh slurm/preflight.sh slurm/sweep.sh
  DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
install(PROGRAMS pbs/train.pbs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/pbs)
install(DIRECTORY slurm/monitoring DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
install(PROGRAMS scripts/plot_run DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/scripts)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
